"""Thunder's TE executor v1 computes an input gradient that nobody needs, and fails where its shape does not fit FP8.

Expected: as in te.Linear, only the weight's gradient is computed when the input does not require grad.
Seen: the backward pass computes the input gradient too; with 24 output features that product is refused.
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
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
eager = te.Linear(64, 24, bias=False, device=device)
with te.fp8_autocast(fp8_recipe=DelayedScaling()):
    y = eager(x)
y.sum().backward()
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("expected: a gradient of shape [24, 64], as eager TE gives:", list(eager.weight.grad.shape))

linear = torch.nn.Linear(64, 24, bias=False, device=device)
jitted = thunder.jit(linear, executors=[transformer_engine_v1_ex], te_fp8_recipe=DelayedScaling())
try:
    jitted(x).sum().backward()
except RuntimeError as error:
    print("seen:", error)
    sys.exit(1)
print("seen:", list(linear.weight.grad.shape))
