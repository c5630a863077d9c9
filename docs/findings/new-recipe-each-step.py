"""Thunder's TE executor v2 forgets its FP8 scales whenever the recipe object is a new one.

Expected: as in eager TE, an equal recipe, or the default one, keeps amax histories and scales from step to step.
Seen: each new object resets them to 0 and 1. The input below is then cast to FP8 unscaled, and rounds to zero.
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
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(32, 64, device=device) * 2**-12  # the smallest positive E4M3 number is 2**-9
linear = torch.nn.Linear(64, 64, bias=False, device=device)
eager = te.ops.Linear(64, 64, bias=False, device=device)
eager.load_state_dict(linear.state_dict(), strict=False)


def error_after_three_steps(model, make_recipe):
    for _ in range(3):
        with te.fp8_autocast(fp8_recipe=make_recipe()):
            y = model(x)
        y.backward(y.detach())
    with torch.no_grad():
        reference = linear(x)
        return ((y - reference).norm() / reference.norm()).item()


def jit():
    return thunder.jit(linear, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()])


one = DelayedScaling()
recipes = {"one object": lambda: one, "fp8_recipe=None": lambda: None, "DelayedScaling() each step": DelayedScaling}
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("relative error of the output at the third step; expected: about 0.04")
for name, make_recipe in recipes.items():
    seen = error_after_three_steps(jit(), make_recipe)
    print(f"seen: {seen:.3f} with {name} (eager TE: {error_after_three_steps(eager, make_recipe):.3f})")
sys.exit(int(seen > 0.5))
