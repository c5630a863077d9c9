"""thunder.jit drops other elements in the backward of a checkpointed region than in its forward.

Expected: an element that dropout dropped in forward gets the gradient 0, and the others 1 / (1 - p) = 2.
Seen: gradients of other elements; they belong to no output that was ever computed.
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


def model(x, weight):
    return checkpoint(lambda y: F.linear(F.dropout(y, 0.5), weight), x * 1, use_reentrant=False)


identity = torch.eye(64, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
print("expected: 0 of 4096 elements whose gradient does not belong to their output")
for name, function in (("eager torch", model), ("thunder.jit", thunder.jit(model))):
    x = torch.ones(64, 64, requires_grad=True)
    y = function(x, identity)
    y.sum().backward()
    wrong = int((x.grad != y).sum())
    print(f"seen, {name}: {wrong} of {y.numel()}")
sys.exit(int(wrong > 0))
