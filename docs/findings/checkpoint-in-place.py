"""thunder.jit applies an operation in place twice if it ends a checkpointed region and the model.

Expected: the output of eager torch.
Seen: an output that was multiplied by 0.5 twice.
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
from torch.utils.checkpoint import checkpoint


def region(x, weight):
    y = F.linear(x, weight)
    y.mul_(0.5)
    return y


def model(x, weight):
    return checkpoint(region, x, weight, use_reentrant=False)


x = torch.ones(64, 64, requires_grad=True)
identity = torch.eye(64, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
print("expected: 0.5 in the output")
for name, function in (("eager torch", model), ("thunder.jit", thunder.jit(model))):
    seen = function(x, identity)[0, 0].item()
    print(f"seen, {name}: {seen}")
sys.exit(int(seen != 0.5))
