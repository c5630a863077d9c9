"""ThunderFX cannot compile a checkpointed region inside another one, and takes minutes to say so.

Expected: the output of eager torch.
Seen: nothing for minutes; in the end a TypeError, torch's silu was given a TensorProxy.
Versions: lightning-thunder 0.2.6
"""

import os
import signal
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
SECONDS = 20


def inner(x):
    return F.silu(x)


def outer(x):
    return checkpoint(inner, torch.sin(x), use_reentrant=False)


def model(x):
    return checkpoint(outer, x, use_reentrant=False)


def too_long(*_):
    print(f"seen: still compiling after {SECONDS} seconds", flush=True)
    os._exit(1)


print("lightning-thunder", version("lightning-thunder"))
print("expected: a graph of three operations, in less than a second", flush=True)
signal.signal(signal.SIGALRM, too_long)
signal.alarm(SECONDS)
try:
    thunderfx(model)(torch.ones(4, 4, requires_grad=True))
except TypeError as error:
    print(f"seen: TypeError: {error}")
    sys.exit(1)
print("seen: that")
