"""Thunder keeps the text of every program that it generates.

Expected: a function that was compiled and is gone leaves nothing in linecache.
Seen: the text of each of its traces stays.
Versions: lightning-thunder 0.2.6
"""

import gc
import linecache
import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder


def programs_after_a_function():
    jitted = thunder.jit(torch.sin)
    jitted(torch.ones(2, requires_grad=True)).sum().backward()
    del jitted
    gc.collect()
    return len(linecache.cache)


first, second = programs_after_a_function(), programs_after_a_function()
print("lightning-thunder", version("lightning-thunder"))
print(f"expected: {first} entries of linecache after the second function, as after the first")
print(f"seen: {second}")
sys.exit(int(second > first))
