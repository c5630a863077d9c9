"""thunder.jit computes in bfloat16 after torch.autocast ended, if it was once called inside.

Expected: outside of torch.autocast the output is float32, as in eager torch.
Seen: bfloat16, without a word. (A call outside *before* the one inside keeps its own compiled function, and is right.)
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
jitted = thunder.jit(linear)
x = torch.randn(32, 64, device=device)

with torch.autocast(device, dtype=torch.bfloat16):
    inside = jitted(x)
outside = jitted(x)

print("lightning-thunder", version("lightning-thunder"))
print("dtype inside of torch.autocast: ", inside.dtype)
print("dtype outside, expected:", linear(x).dtype)
print("dtype outside, seen:    ", outside.dtype)
sys.exit(int(outside.dtype != linear(x).dtype))
