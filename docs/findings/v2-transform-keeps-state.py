"""Under thunder.core.transforms.grad TransformerEngineTransform keeps what it saw in an earlier trace.

Expected: a second input shape is compiled like the first one.
Seen: AssertionError "Trace has no return, and so no output": the transform resets itself only when it meets a backward
trace, which this entry has not, and removes the second trace's return as a repetition of the first one's.
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
from thunder.core.transforms import grad
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
weight = torch.randn(64, 64, device=device, requires_grad=True)
jitted = thunder.jit(
    torch.nn.functional.linear, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()]
)
gradients = grad(jitted)
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
for rows in (32, 64):
    try:
        with te.fp8_autocast(fp8_recipe=DelayedScaling()):
            gradients(torch.randn(rows, 64, device=device), weight)
    except AssertionError as error:
        print(f"{rows} rows: expected: gradients; seen: {error}")
        sys.exit(1)
    print(f"{rows} rows: gradients, as expected")
