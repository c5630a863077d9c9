"""te.ops hands an FP8 gradient to autograd when the first linear's weight is frozen and its bias is trained.

Expected: backward gives the gradient of the bias.
Seen: backward raises, because the gradient of the input, which nobody needs, is an FP8 tensor.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
model = te.ops.Sequential(te.ops.Linear(64, 64, device=device))
model[0].weight.requires_grad_(False)
with te.fp8_autocast(fp8_recipe=DelayedScaling()):
    y = model(torch.randn(32, 64, device=device))
print("transformer_engine", version("transformer_engine"))
print("expected: a gradient of the bias of shape [64]")
try:
    y.sum().backward()
except (RuntimeError, TypeError) as error:
    print("seen:", type(error).__name__, error)
    sys.exit(1)
print("seen: a gradient of shape", list(model[0].bias.grad.shape))
