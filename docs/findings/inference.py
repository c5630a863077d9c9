"""Thunder never uses TE in a pass that is not differentiated: FP8 is silently off in evaluation.

Expected: the TE executors come first in the list of executors and claim every linear that fits FP8, as eager TE does.
Seen: without gradients, the torch executor claims the linear. The output is that of plain torch.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
import transformer_engine.pytorch as te
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
linear = torch.nn.Linear(64, 64, device=device)
recipe = DelayedScaling()
bug = False
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
for executor, options in (
    (transformer_engine_ex, {"transforms": [TransformerEngineTransform()]}),
    (transformer_engine_v1_ex, {"te_fp8_recipe": recipe}),
):
    jitted = thunder.jit(linear, executors=[executor, *thunder.get_default_executors()], **options)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), te.fp8_autocast(fp8_recipe=recipe):
            jitted(x)
        claimed = any("te_" in bsym.sym.name for bsym in thunder.last_traces(jitted)[-1].bound_symbols)
        print(f"{executor.name}, gradients {'on' if grad else 'off'}: expected: TE runs the linear; seen: {claimed}")
        bug |= not claimed
sys.exit(int(bug))
