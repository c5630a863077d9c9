"""thunder.jit takes one parameter for another when their paths differ only in "." and "_".

Expected: the submodule's weight `first.weight` and the model's own parameter `first_weight` are two parameters.
Seen: the jitted module uses one of them twice; the other one gets no gradient. No warning.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.first_weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        return F.linear(self.first(x), self.first_weight)


torch.manual_seed(0)
model, x = Model(), torch.randn(8, 16)
eager = model(x)
jitted = thunder.jit(model)(x)
jitted.sum().backward()
error = ((jitted - eager).norm() / eager.norm()).item()
missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
print("lightning-thunder", version("lightning-thunder"))
print("expected: a relative difference of the output below 0.001, and a gradient for each parameter")
print(f"seen: a relative difference of {error:.3f}; no gradient for: {', '.join(missing) or 'none'}")
sys.exit(int(error > 0.001 or bool(missing)))
