"""A deep copy of a TE module that has run in FP8 never updates its scales again.

Expected: the copy goes on as the original does: a scale of 448 / 8 = 56 after an input whose largest value is 8.
Seen: the scale that was copied, for good.
Versions: transformer_engine 2.9.0
"""

import copy
import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
recipe = DelayedScaling(amax_history_len=4, amax_compute_algo="most_recent")


def step(module, largest):
    """One training step for an input whose largest value is ``largest``."""
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        output = module(torch.full((16, 64), largest, device=device))
    output.sum().backward()


def scale_of_input(module):
    """The scale by which the next input is multiplied before it is cast to E4M3."""
    if isinstance(module, te.ops.Linear):
        return module.basic_ops[0]._fp8_metas["forward"]["scaling_fwd"].scale[0].item()
    return module.fp8_meta["scaling_fwd"].scale[0].item()


print("transformer_engine", version("transformer_engine"))
wrong = []
for kind in (te.Linear, te.ops.Linear):
    original = kind(64, 64, device=device)
    step(original, 1.0)
    twin = copy.deepcopy(original)
    for _ in range(3):
        step(original, 8.0)
        step(twin, 8.0)
    expected, seen = scale_of_input(original), scale_of_input(twin)
    print(f"{kind.__module__}.{kind.__name__}: expected a scale of {expected:g} (the original's), seen {seen:g}")
    wrong.append(seen != expected)
sys.exit(int(any(wrong)))
