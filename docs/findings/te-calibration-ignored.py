"""te.Linear and te.LayerNormLinear do not calibrate: fp8_autocast(enabled=False, calibrating=True) leaves no amax.

Expected: the amax of input and weight in the amax history, as in te.LayerNormMLP.
Seen: zeros.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)


def largest(module):
    """The largest amax in the histories of forward after a step that calibrates."""
    with te.fp8_autocast(enabled=False, calibrating=True, fp8_recipe=DelayedScaling()):
        module(x)
    return module.fp8_meta["scaling_fwd"].amax_history.max().item()


print("transformer_engine", version("transformer_engine"))
print("largest amax, expected (te.LayerNormMLP): ", largest(te.LayerNormMLP(64, 64, activation="relu", device=device)))
seen = {
    "te.Linear": largest(te.Linear(64, 64, device=device)),
    "te.LayerNormLinear": largest(te.LayerNormLinear(64, 64, device=device)),
}
print("largest amax, seen:", seen)
sys.exit(int(not all(seen.values())))
