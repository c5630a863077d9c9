"""TE's modules mix up forward and backward when the length of the amax history changes.

Expected: the list of all forward histories, which the update of scales goes through, holds those of forward.
Seen: it holds those of backward. (The emulation then raises in the update, as the numbers of tensors do not fit.)
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
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = te.Linear(64, 64, device=device)
x = torch.randn(32, 64, device=device)
for length in (16, 4):
    recipe = DelayedScaling(amax_history_len=length)
    try:
        with te.fp8_autocast(fp8_recipe=recipe):
            y = linear(x)
        y.sum().backward()
    except ValueError as error:
        print("the update raised:", error)

forward = linear.fp8_meta["scaling_fwd"].amax_history
backward = linear.fp8_meta["scaling_bwd"].amax_history
listed = [
    history
    for name, histories in FP8GlobalStateManager.global_amax_history_buffer.items()
    if name.startswith("forward")
    for history in histories
]
print("transformer_engine", version("transformer_engine"))
print("expected in the list of forward: a history of shape", tuple(forward.shape))
print("seen in the list of forward:     ", [tuple(history.shape) for history in listed])
sys.exit(int(any(history is backward for history in listed)))
