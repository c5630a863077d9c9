"""thunder.jit marks every output as requiring grad as soon as one of them does.

Expected: an output that depends on nothing that requires grad does not require grad, as in eager torch.
Seen: it does.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from torch.nn import functional as F


def model(x, weight):
    statistics = x * x
    return F.linear(x, weight), statistics


x, weight = torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
print("expected: (True, False)")
for name, function in (("eager torch", model), ("thunder.jit", thunder.jit(model))):
    requires_grad = tuple(output.requires_grad for output in function(x, weight))
    print(f"seen, {name}: {requires_grad}")
sys.exit(int(requires_grad != (True, False)))
