"""The TE executor v2 registers new operators for each linear that it compiles, and keeps them when the model is gone.

Expected: a second model, made when the first is gone, leaves the executor's table of operators as it is.
Seen: five more operators for each linear.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import gc
import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
import transformer_engine.pytorch as te
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(16, 64, device=device)


def operators_after_a_model():
    weight = torch.randn(64, 64, device=device, requires_grad=True)
    transforms = [TransformerEngineTransform()]
    jitted = thunder.jit(torch.nn.functional.linear, executors=[transformer_engine_ex], transforms=transforms)
    with te.fp8_autocast():
        jitted(x, weight).sum().backward()
    del jitted
    gc.collect()
    return len(transformer_engine_ex.opmap)


first, second = operators_after_a_model(), operators_after_a_model()
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print(f"expected: {first} operators after the second model, as after the first")
print(f"seen: {second}")
sys.exit(int(second > first))
