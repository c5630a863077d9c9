"""Thunder's TE executor v1 takes every recipe that is not DelayedScaling for MXFP8 and fails on the others.

Expected: FP8 with current scaling, or a linear that is left to torch (what the executor v2 does, with a warning).
Seen: AssertionError while compiling.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
import traceback
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex
from transformer_engine.common.recipe import Float8CurrentScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, device=device)
jitted = thunder.jit(linear, executors=[transformer_engine_v1_ex], te_fp8_recipe=Float8CurrentScaling())
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("expected: an output of shape [32, 64]")
try:
    y = jitted(torch.randn(32, 64, device=device))
except AssertionError as error:
    print("seen: AssertionError:", traceback.extract_tb(error.__traceback__)[-1].line)
    sys.exit(1)
print("seen: an output of shape", list(y.shape))
