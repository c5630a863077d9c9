"""Two te.ops linears without bias in a row do not run under Float8CurrentScaling.

Expected: an output, as under DelayedScaling, or as when the two are called one after the other.
Seen: the first linear is asked for an output that is already quantised for the second, and refuses the quantizer.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
first, second = (te.ops.Linear(64, 64, bias=False, device=device) for _ in range(2))


def shape(model, recipe):
    with te.fp8_autocast(fp8_recipe=recipe):
        return list(model(x).shape)


print("transformer_engine", version("transformer_engine"))
print("expected: [32, 64] in each")
print("current scaling, one after the other:", shape(lambda x: second(first(x)), Float8CurrentScaling()))
print("delayed scaling, Sequential:", shape(te.ops.Sequential(first, second), DelayedScaling()))
try:
    print("current scaling, Sequential:", shape(te.ops.Sequential(first, second), Float8CurrentScaling()))
except RuntimeError as error:
    print("current scaling, Sequential: seen:", error)
    sys.exit(1)
