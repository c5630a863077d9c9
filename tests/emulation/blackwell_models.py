"""Run by test_capability_10.py in a process of its own: TE's modules under every recipe at capability 10.0."""

from __future__ import annotations

import torch

import harness.emulation

harness.emulation.install((10, 0))

import transformer_engine.pytorch as te  # noqa: E402
from transformer_engine.common import recipe  # noqa: E402
from transformer_engine.pytorch.quantization import FP8GlobalStateManager  # noqa: E402

SIZE, FFN, ROWS = 64, 128, 64
RECIPES = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
TOLERANCE = {"NVFP4BlockScaling": 0.5}


def build(name: str) -> torch.nn.Module:
    """A module in bf16 with the same weights at every call."""
    torch.manual_seed(0)
    if name == "ops":
        return te.ops.Sequential(
            te.ops.RMSNorm(SIZE), te.ops.Linear(SIZE, FFN), te.ops.GELU(), te.ops.Linear(FFN, SIZE)
        )
    return {"Linear": te.Linear, "LayerNormLinear": te.LayerNormLinear, "LayerNormMLP": te.LayerNormMLP}[name](
        SIZE, FFN
    )


def run(module: torch.nn.Module, chosen: recipe.Recipe | None) -> list[torch.Tensor]:
    """Output and gradients of one step."""
    torch.manual_seed(1)
    FP8GlobalStateManager.reset()
    x = torch.randn(ROWS, SIZE, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(enabled=chosen is not None, recipe=chosen):
        y = module(x)
    y.backward(torch.randn_like(y))
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]  # type: ignore[list-item]


def main() -> None:
    """Every module and recipe stays near its bf16 result; quantized weights work."""
    for name in ("Linear", "LayerNormLinear", "LayerNormMLP", "ops"):
        exact = run(build(name).to(torch.bfloat16), None)
        for recipe_name in RECIPES:
            if (name, recipe_name) == ("ops", "Float8BlockScaling"):
                continue  # TE 2.9 refuses it
            results = run(build(name).to(torch.bfloat16), getattr(recipe, recipe_name)())
            for result, expected in zip(results, exact, strict=True):
                error = ((result - expected).float().norm() / expected.float().norm()).item()
                assert 0 < error < TOLERANCE.get(recipe_name, 0.15) or expected.dim() == 1, (name, recipe_name, error)
    for recipe_name in ("MXFP8BlockScaling", "NVFP4BlockScaling"):
        chosen = getattr(recipe, recipe_name)()
        with te.quantized_model_init(enabled=True, recipe=chosen):
            module = te.Linear(SIZE, FFN, params_dtype=torch.bfloat16)
        assert type(module.weight).__name__ == recipe_name.replace("BlockScaling", "Tensor")
        assert all(torch.isfinite(result).all() for result in run(module, chosen))


if __name__ == "__main__":
    main()
    print("all recipes ran")  # noqa: T201
