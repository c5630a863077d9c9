"""thunder.core.transforms.grad differentiates what is inside torch.no_grad().

Expected: the gradient of y + 3 y with 3 y inside torch.no_grad() is 1, as eager torch and the jitted function give it.
Seen: 4.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.core.transforms import grad


def model(y):
    with torch.no_grad():
        branch = 3 * y
    return y + branch


device = "cuda" if torch.cuda.is_available() else "cpu"
y = torch.ones(4, device=device, requires_grad=True)
model(y).sum().backward()
eager, y.grad = y.grad, None
thunder.jit(model)(y).sum().backward()
(seen,) = grad(thunder.jit(model))(y)
print("lightning-thunder", version("lightning-thunder"))
print("gradient of eager torch:", eager.tolist(), "of the jitted function:", y.grad.tolist())
print("of transforms.grad; expected: the same; seen:", seen.tolist())
sys.exit(int(not torch.equal(seen, eager)))
