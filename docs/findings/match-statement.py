"""thunder.jit takes the wrong branch of a match statement with class patterns.

Expected: sin(cos(1)).
Seen: cos(cos(1)), silently. Outside a loop, a class pattern that does not match raises IndexError while compiling.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder


def model(x, names):
    for name in names:
        match name:
            case str():
                x = torch.cos(x)
            case int():
                x = torch.sin(x)
    return x


x = torch.ones(2)
print("lightning-thunder", version("lightning-thunder"))
print("expected:", expected := model(x, ["cos", 1]))
print("seen:", seen := thunder.jit(model)(x, ["cos", 1]))
sys.exit(int(not torch.equal(seen, expected)))
