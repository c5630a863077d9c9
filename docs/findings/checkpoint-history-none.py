"""thunder.jit cannot compile a checkpointed region inside another one.

Expected: the value that torch gives.
Seen: AssertionError, a tensor "has history None". With one checkpoint, inner or outer, Thunder gives the value.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from torch.utils.checkpoint import checkpoint


def region(x):
    y = torch.cos(x)
    return checkpoint(torch.sin, y, use_reentrant=False)


def model(x):
    return checkpoint(region, x, use_reentrant=False)


x = torch.ones(2)
print("lightning-thunder", version("lightning-thunder"))
print("expected:", model(x), "the inner region alone:", thunder.jit(region)(x))
try:
    print("seen:", thunder.jit(model)(x))
except AssertionError as error:
    print("seen: AssertionError:", error)
    sys.exit(1)
