"""TE's modules and fused operations on the emulation against float64 autograd, with FP8 and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from torch.nn import functional as F
from transformer_engine.common import recipe
from transformer_engine.pytorch.quantization import FP8GlobalStateManager
from transformer_engine.pytorch.tensor.float8_tensor import Float8Quantizer

H, FFN, ROWS = 64, 128, 32


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def swiglu(x: torch.Tensor) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    return F.silu(first) * gate


def layer_norm(p: dict[str, torch.Tensor], x: torch.Tensor, prefix: str = "") -> torch.Tensor:
    return F.layer_norm(x, (H,), p[f"{prefix}weight"], p[f"{prefix}bias"], 1e-5)


Model = tuple[Callable[[], torch.nn.Module], Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor]]
MODELS: dict[str, Model] = {
    "Linear": (lambda: te.Linear(H, FFN), lambda p, x: F.linear(x, p["weight"], p["bias"])),
    "LayerNorm": (lambda: te.LayerNorm(H), layer_norm),
    "RMSNorm": (lambda: te.RMSNorm(H), lambda p, x: F.rms_norm(x, (H,), p["weight"], 1e-5)),
    "LayerNormLinear": (
        lambda: te.LayerNormLinear(H, FFN),
        lambda p, x: F.linear(layer_norm(p, x, "layer_norm_"), p["weight"], p["bias"]),
    ),
    "LayerNormMLP": (
        lambda: te.LayerNormMLP(H, FFN),
        lambda p, x: F.linear(
            gelu(F.linear(layer_norm(p, x, "layer_norm_"), p["fc1_weight"], p["fc1_bias"])),
            p["fc2_weight"],
            p["fc2_bias"],
        ),
    ),
    "ops": (
        lambda: te.ops.Sequential(te.ops.LayerNorm(H), te.ops.Linear(H, FFN), te.ops.SwiGLU(), te.ops.Linear(H, H)),
        lambda p, x: F.linear(
            swiglu(F.linear(layer_norm(p, x, "0."), p["1.weight"], p["1.bias"])), p["3.weight"], p["3.bias"]
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_fp32_modules_equal_float64_autograd(name: str) -> None:
    build, reference = MODELS[name]
    module = build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    x = torch.randn(2, ROWS, H, requires_grad=True)
    y = module(x)
    grad = torch.randn_like(y)
    y.backward(grad)

    x64 = x.detach().double().requires_grad_()
    named = dict(module.named_parameters())
    p64 = {name: parameter.detach().double().requires_grad_() for name, parameter in named.items()}
    y64 = reference(p64, x64)
    y64.backward(grad.double())

    close(y, y64, "output")
    close(x.grad, x64.grad, "input gradient")
    for key, parameter in named.items():
        close(parameter.grad, p64[key].grad, f"gradient of {key}")


def close(actual: torch.Tensor | None, exact: torch.Tensor | None, what: str) -> None:
    """Relative to the largest element: sums of up to 64 * 128 fp32 terms stay well within 2e-6 of it."""
    assert actual is not None
    assert exact is not None
    error = (actual.double() - exact).abs().max() / exact.abs().max()
    assert error < 2e-6, f"{what}: relative error {error:.2e}"


def fp8(values: torch.Tensor, scale: float, name: str) -> torch.Tensor:
    """float64 values that the FP8 format keeps of ``values``."""
    quantizer = Float8Quantizer(torch.tensor([scale]), torch.zeros(1), tex.DType[name])
    return tex.dequantize(tex.quantize(values, quantizer), tex.DType.kFloat32).double()


def current_scale(values: torch.Tensor, largest: float) -> float:
    return torch.div(torch.tensor(largest), values.abs().max()).item()


@pytest.mark.parametrize("scaling", ["delayed", "current"])
def test_fp8_linear_is_the_product_of_quantized_operands(scaling: str) -> None:
    """Forward E4M3 x E4M3, backward with the gradient in E5M2; bias in bf16, bias gradient unquantized."""
    layer = te.Linear(H, FFN)
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.randn(ROWS, H, requires_grad=True)
    chosen = recipe.DelayedScaling() if scaling == "delayed" else recipe.Float8CurrentScaling()
    with te.autocast(recipe=chosen):
        y = layer(x)
    grad = torch.randn_like(y)
    y.backward(grad)

    def scale(values: torch.Tensor, largest: float) -> float:
        return 1.0 if scaling == "delayed" else current_scale(values, largest)

    x8 = fp8(x.detach(), scale(x.detach(), 448.0), "kFloat8E4M3")
    w8 = fp8(layer.weight.detach(), scale(layer.weight.detach(), 448.0), "kFloat8E4M3")
    g8 = fp8(grad, scale(grad, 57344.0), "kFloat8E5M2")
    close(y, x8 @ w8.t() + layer.bias.detach().bfloat16().double(), "output")
    close(x.grad, g8 @ w8, "input gradient")
    close(layer.weight.grad, g8.t() @ x8, "weight gradient")
    close(layer.bias.grad, grad.double().sum(0), "bias gradient")


def test_delayed_scaling_over_three_steps() -> None:
    """The scale of step n comes from what the steps before it saw."""
    layer = te.Linear(H, FFN, bias=False)
    chosen = recipe.DelayedScaling(amax_history_len=2, amax_compute_algo="max")
    sizes = [4.0, 1.0, 0.5, 0.25]
    scales = []
    for size in sizes:
        x = torch.full((ROWS, H), size)
        with te.autocast(recipe=chosen):
            layer(x)
        scales.append(layer.fp8_meta["scaling_fwd"].scale[0].item())
    # A history of length 2 keeps one past amax beside the newest.
    assert scales == [448.0 / max(sizes[max(0, step - 1) : step + 1]) for step in range(len(sizes))]


@pytest.mark.parametrize(
    "chosen", [None, recipe.DelayedScaling(), recipe.Float8CurrentScaling()], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fused_and_unfused_operations_agree(chosen: Any, dtype: torch.dtype) -> None:
    """The operation fuser joins linear, bias and activation; run one by one they must say the same."""
    ops = [te.ops.BasicLinear(H, FFN), te.ops.Bias(FFN), te.ops.ReLU(), te.ops.BasicLinear(FFN, H)]
    fused = te.ops.Sequential(*ops).to(dtype)
    x = torch.randn(ROWS, H, dtype=dtype)
    grad = torch.randn(ROWS, H, dtype=dtype)
    results = []
    for run in (fused, lambda value: ops[3](ops[2](ops[1](ops[0](value))))):
        leaf = x.clone().requires_grad_()
        fused.zero_grad(set_to_none=True)
        FP8GlobalStateManager.reset()
        for op in ops:
            op.reset_recipe_state(recipe=None)
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            y = run(leaf)
        y.backward(grad)
        results.append([y, leaf.grad, *(parameter.grad for parameter in fused.parameters())])
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    for one, other in zip(*results, strict=True):
        error = (one.float() - other.float()).abs().max() / other.float().abs().max()
        assert error <= tolerance


def test_fp8_weights() -> None:
    with te.quantized_model_init(enabled=True, recipe=recipe.DelayedScaling()):
        layer = te.Linear(H, H, params_dtype=torch.bfloat16)
    assert type(layer.weight).__name__ == "Float8Tensor"
    x = torch.randn(ROWS, H, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=recipe.DelayedScaling()):
        y = layer(x)
    y.sum().backward()
    expected = fp8(x.detach().float(), 1.0, "kFloat8E4M3") @ layer.weight.dequantize().double().t()
    torch.testing.assert_close(y.double(), expected, rtol=2**-7, atol=1e-3)
    assert layer.weight.grad is not None
