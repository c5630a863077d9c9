"""thunder.jit cannot differentiate a part of a model that switches torch.autocast off.

Expected: the inner linear computes in float32, forward and backward, as in eager torch.
Seen: an exception about dtypes while the gradients are traced.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, device=device)


def model(x):
    with torch.autocast(device, enabled=False):
        return linear(x.float())


x = torch.randn(32, 64, device=device, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
with torch.autocast(device, dtype=torch.bfloat16):
    print("expected:", model(x).dtype)
    try:
        print("seen:    ", thunder.jit(model)(x).dtype)
        failed = False
    except RuntimeError as error:
        print("seen:    ", error)
        failed = True
sys.exit(int(failed))
