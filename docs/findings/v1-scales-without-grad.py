"""Thunder's TE executor v1 never updates its scales without grad, where torch.autocast makes it compute in FP8.

Expected: the scales of training, as a te.Linear has them; or no FP8, as without torch.autocast.
Seen: the scale 1 for ever: small activations become 0.
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
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
linear = torch.nn.Linear(64, 64, bias=False, device=device)
eager = te.Linear(64, 64, bias=False, device=device)
eager.load_state_dict(linear.state_dict(), strict=False)
recipe = DelayedScaling()
jitted = thunder.jit(linear, executors=[transformer_engine_v1_ex], te_fp8_recipe=recipe)
x = torch.randn(32, 64, device=device) / 4096


def error(model):
    """Relative error of the output without grad, after three training steps on the same values."""
    with torch.autocast(device, dtype=torch.bfloat16):
        for _ in range(3):
            with te.fp8_autocast(fp8_recipe=recipe):
                y = model(x)
            y.sum().backward()
        with torch.no_grad(), te.fp8_autocast(fp8_recipe=recipe):
            y = model(x)
    with torch.no_grad():
        return ((y - linear(x)).norm() / linear(x).norm()).item()


print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print(f"relative error in evaluation, expected (te.Linear): {error(eager):.3f}")
seen = error(jitted)
print(f"relative error in evaluation, seen:                 {seen:.3f}")
sys.exit(int(seen > 0.2))
