"""te.Linear and te.LayerNormLinear give no gradient for the bias of a frozen weight, outside of FP8.

Expected: the gradient of the bias, as torch.nn.Linear, te.LayerNormMLP and te.Linear under FP8 give it.
Seen: None.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device, requires_grad=True)


def bias_has_gradient(module, fp8=False):
    """Whether backward reaches the bias when the weight is frozen."""
    module.weight.requires_grad_(False)
    with te.fp8_autocast(enabled=fp8):
        y = module(x)
    y.sum().backward()
    return module.bias.grad is not None


print("transformer_engine", version("transformer_engine"))
print("gradient, expected (torch.nn.Linear):   ", bias_has_gradient(torch.nn.Linear(64, 64, device=device)))
print("gradient, expected (te.Linear with FP8):", bias_has_gradient(te.Linear(64, 64, device=device), fp8=True))
seen = {
    "te.Linear": bias_has_gradient(te.Linear(64, 64, device=device)),
    "te.LayerNormLinear": bias_has_gradient(te.LayerNormLinear(64, 64, device=device)),
}
print("gradient, seen:", seen)
sys.exit(int(not all(seen.values())))
