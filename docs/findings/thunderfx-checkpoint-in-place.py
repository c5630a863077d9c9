"""ThunderFX leaves operations in place out of the gradients of a checkpointed region.

Expected: the gradient of eager torch, 0.5.
Seen: 1.0, as if y.mul_(0.5) were not there; the output is right.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch
import torch._dynamo

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
from thunder.dynamo import thunderfx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch._dynamo.config.use_lazy_graph_module = False  # Thunder's interpreter cannot make it later


def region(x, weight):
    y = F.linear(x, weight)
    y.mul_(0.5)
    return y


def model(x, weight):
    return checkpoint(region, x, weight, use_reentrant=False)


identity = torch.eye(64, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
print("expected: output 0.5, gradient 0.5")
for name, function in (("eager torch", model), ("thunderfx", thunderfx(model))):
    x = torch.ones(64, 64, requires_grad=True)
    y = function(x, identity)
    y.sum().backward()
    print(f"seen, {name}: output {y[0, 0].item()}, gradient {x.grad[0, 0].item()}")
sys.exit(int(x.grad[0, 0].item() != 0.5))
