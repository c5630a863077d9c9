"""TE's FP8 globals keep the scales and amax histories of modules that are gone.

Expected: a module that is gone leaves nothing behind.
Seen: its scales and amax histories stay, and every autocast region updates them.
Versions: transformer_engine 2.9.0
"""

import gc
import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

device = "cuda" if torch.cuda.is_available() else "cpu"


def histories_after_a_module():
    module = te.Linear(64, 64, device=device)
    with te.fp8_autocast():
        module(torch.randn(16, 64, device=device)).sum().backward()
    del module
    gc.collect()
    return sum(map(len, FP8GlobalStateManager.global_amax_history_buffer.values()))


first, second = histories_after_a_module(), histories_after_a_module()
print("transformer_engine", version("transformer_engine"))
print(f"expected: {first} amax histories after the second module, as after the first")
print(f"seen: {second}")
sys.exit(int(second > first))
