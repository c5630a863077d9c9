"""Thunder's TE executor v2 computes without FP8 for ever if the recipe was one that it does not know when it compiled.

Expected: FP8 in the steps under DelayedScaling, whatever the recipe of the first step.
Seen: high precision in all steps.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
import transformer_engine.pytorch as te
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, bias=False, device=device)
delayed, current = DelayedScaling(), Float8CurrentScaling()


def errors(recipes):
    """Relative difference of the output from the linear in float32, step by step."""
    jitted = thunder.jit(linear, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()])
    for recipe in recipes:
        x = torch.randn(32, 64, device=device)
        with te.fp8_autocast(fp8_recipe=recipe):
            y = jitted(x)
        yield ((y - linear(x)).norm() / linear(x).norm()).item()


print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("difference from float32; expected: above 0.01 in every step under DelayedScaling")
print("seen, DelayedScaling first:      ", [f"{error:.4f}" for error in errors([delayed, current, delayed])])
late = list(errors([current, delayed, delayed]))
print("seen, Float8CurrentScaling first:", [f"{error:.4f}" for error in late])
sys.exit(int(late[-1] < 0.001))
