"""Thunder's TE executor v1 gives no gradient for an input that is not contiguous.

Expected: the gradient of the input, as te.Linear gives it.
Seen: None, without an error.
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
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, bias=False, device=device)
eager = te.Linear(64, 64, bias=False, device=device)
jitted = thunder.jit(linear, executors=[transformer_engine_v1_ex])
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("expected: a gradient of shape [32, 64] for both inputs")
missing = False
for name, model in (("eager TE", eager), ("thunder v1", jitted)):
    for layout, x in (
        ("contiguous", torch.randn(32, 64, device=device)),
        ("transposed", torch.randn(64, 32, device=device).t()),
    ):
        x.requires_grad_()
        with te.fp8_autocast(enabled=True):
            y = model(x)
        y.sum().backward()
        print(f"seen, {name}, {layout} input: gradient", None if x.grad is None else list(x.grad.shape))
        missing = missing or x.grad is None
sys.exit(int(missing))
