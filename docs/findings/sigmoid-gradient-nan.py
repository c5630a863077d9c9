"""Thunder's gradient of sigmoid is NaN for inputs below about -88.

Expected: 0, as in torch: sigmoid is flat there.
Seen: NaN. The gradient multiplies exp(-x), which is infinite, with the square of 1 / (1 + exp(-x)), which is 0.
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
x = torch.tensor([-50.0, -100.0], device=device, requires_grad=True)
thunder.jit(torch.sigmoid)(x).sum().backward()
print("lightning-thunder", version("lightning-thunder"), "torch", version("torch"))
print("gradient of sigmoid at -50 and -100; expected: about 2e-22 and 0; seen:", x.grad.tolist())
sys.exit(int(x.grad.isnan().any()))
