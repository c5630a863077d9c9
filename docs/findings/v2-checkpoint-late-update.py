"""Thunder's TE executor v2 updates the scales of a checkpointed linear in backward only.

Expected: scales that follow every forward, as in eager TE and without checkpointing.
Seen: forwards without a backward in between (skipped steps, several micro-batches) all use the first scale.
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
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
recipe = DelayedScaling()
weight = torch.nn.Parameter(torch.randn(64, 64, device=device) / 8)
x = torch.randn(32, 64, device=device) / 4096


def plain(x, weight):
    return linear(linear(x, weight).relu(), weight)


def checkpointed(x, weight):
    return checkpoint(plain, x, weight, use_reentrant=False)


def error(function):
    """Relative error of the third of three forwards; the backward passes have not run yet."""
    jitted = thunder.jit(function, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()])
    for _ in range(3):
        with te.fp8_autocast(fp8_recipe=recipe):
            y = jitted(x, weight)
    return ((y - plain(x, weight)).norm() / plain(x, weight).norm()).item()


print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print(f"relative error of the third forward, expected (not checkpointed): {error(plain):.3f}")
seen = error(checkpointed)
print(f"relative error of the third forward, seen (checkpointed):         {seen:.3f}")
sys.exit(int(seen > 0.2))
