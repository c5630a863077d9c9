"""Under thunder.core.transforms.grad Thunder's TE executor v1 never updates the scales of gradients.

Expected: as after loss.backward(), the amax of the gradient moves into the history and sets the next scale.
Seen: the scale stays 1, so small gradients are cast to E5M2 unscaled in every step, and round to zero.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.core.transforms import grad
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(32, 64, device=device)
weight = torch.randn(64, 64, device=device, requires_grad=True)


def small_loss(x, weight):
    return torch.nn.functional.linear(x, weight) * 2**-20  # the smallest positive E5M2 number is 2**-16


gradients = grad(thunder.jit(small_loss, executors=[transformer_engine_v1_ex]))
for _ in range(3):
    _, seen = gradients(x, weight)
expected = 2**-20 * torch.ones(64, 1, device=device) * x.sum(dim=0)
error = float((seen - expected).norm() / expected.norm())
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print(f"relative error of the weight's gradient at the third step; expected: about 0.04; seen: {error:.3f}")
sys.exit(int(error > 0.5))
