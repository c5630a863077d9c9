"""TE's two implementations of the delayed-scaling update give different scales and amax histories.

Expected: NVTE_UNFUSED_FP8_UPDATE=1 (the Python function, which also runs for callable algorithms and in Thunder's
executor v2) changes nothing but speed.
Seen: scales differ by one ulp; after an input of zeros, one moves the amax history on and the other does not.
Versions: transformer_engine 2.9.0. Without a GPU the fused side is tefuzz' emulation, written after TE's CUDA source.
"""

import os
import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
recipe = DelayedScaling(amax_history_len=3, amax_compute_algo="max")
x = torch.full((32, 64), 3.0, device=device)


def state(unfused):
    os.environ["NVTE_UNFUSED_FP8_UPDATE"] = unfused
    linear = te.Linear(64, 64, device=device)
    for factor in (2, 1, 0):
        with te.fp8_autocast(fp8_recipe=recipe):
            linear(x * factor)
    meta = linear.fp8_meta["scaling_fwd"]
    return meta.scale[0].item(), meta.amax_history[:, 0].tolist()


fused, python = state("0"), state("1")
print("transformer_engine", version("transformer_engine"))
print("scale and amax history of the input after amaxes of 6, 3 and 0; expected: the same twice")
print(f"seen: fused  {fused}\n      python {python}")
sys.exit(int(fused != python))
