"""Compiling a linear with Thunder's TE executor v1 draws from the caller's random numbers.

Expected: the same dropout mask for the same seed, whether or not thunder.jit has to compile first.
Seen: another mask in the step that compiles.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.executors import transformer_engine_v1ex

# The harness mends this, to be able to test dropout under v1: the program takes the mended function out.
probe = transformer_engine_v1ex._get_num_saved_tensors
transformer_engine_v1ex._get_num_saved_tensors = getattr(probe, "__wrapped__", probe)
device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, bias=False, device=device)
jitted = thunder.jit(linear, executors=[transformer_engine_v1ex.transformer_engine_v1_ex])
x = torch.randn(32, 64, device=device)
after = []
for _ in range(2):
    torch.manual_seed(0)
    jitted(x).sum().backward()
    after.append(torch.rand(1, device=device).item())
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("expected: the same random number after the step that compiles and after the next one, from the same seed")
print(f"seen: {after[0]:.6f} and {after[1]:.6f}")
sys.exit(int(after[0] != after[1]))
