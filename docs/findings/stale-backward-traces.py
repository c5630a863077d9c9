"""thunder.last_backward_traces shows the backward pass of another specialisation after a cache hit.

Expected: the traces of the call before, as thunder.last_traces gives them.
Seen: those of the last compilation.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder

jitted = thunder.jit(torch.sin)
small, large = (torch.ones(n, requires_grad=True) for n in (2, 3))


def traces_after(x):
    jitted(x)
    return thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]


forward, backward = traces_after(small)
traces_after(large)
forward_again, backward_again = traces_after(small)
print("lightning-thunder", version("lightning-thunder"))
print("the traces after a second call with the first shape are those of the first call")
print("expected: forward True, backward True")
print(f"seen: forward {forward_again is forward}, backward {backward_again is backward}")
sys.exit(int(backward_again is not backward))
