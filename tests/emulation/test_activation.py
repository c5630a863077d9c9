"""Activations and their derivatives against float64 formulas written independently, and their quantized forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

from .bounds import after_rounding, assert_within

Function = Callable[[torch.Tensor], torch.Tensor]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


PLAIN: dict[str, Function] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "qgelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "srelu": lambda x: x.clamp(min=0) ** 2,
}
GATED = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu", "qgeglu": "qgelu", "sreglu": "srelu"}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
NAMES = pytest.mark.parametrize("name", [*PLAIN, *GATED])
# TE writes sqrt(2 / pi) and its multiples with eight digits: 4e-9 relative, less than one rounding of the argument.
# tanh and exp amplify an error of the argument by at most its size (below 16 here) before they saturate.
ROUNDINGS = 48


def reference(name: str) -> Function:
    if name in PLAIN:
        return PLAIN[name]

    def gated(x: torch.Tensor) -> torch.Tensor:
        first, gate = x.chunk(2, dim=-1)
        return PLAIN[GATED[name]](first) * gate

    return gated


def data(dtype: torch.dtype, limit: float = 8.0) -> torch.Tensor:
    """Values on both sides of zero, small ones included."""
    values = torch.cat([torch.linspace(-limit, limit, 3 * 64), torch.randn(64) * 1e-3]).reshape(16, 16)
    return values[torch.randperm(16)].to(dtype)


def delayed(scale: float = 1.0) -> Float8Quantizer:
    return Float8Quantizer(torch.tensor([scale]), torch.zeros(1), tex.DType.kFloat8E4M3)


@NAMES
@DTYPES
def test_forward(name: str, dtype: torch.dtype) -> None:
    x = data(dtype)
    exact = reference(name)(x.double())
    magnitude = (
        exact.abs() + 1e-3 * x.double().abs().chunk(2, dim=-1)[0] if name in GATED else exact.abs() + x.double().abs()
    )
    y = getattr(tex, name)(x, None)
    assert_within(
        y, exact, after_rounding(exact, ROUNDINGS, dtype, magnitude + 1e-30 if name in PLAIN else magnitude + 8.0)
    )
    assert y.dtype == dtype


@NAMES
@DTYPES
def test_backward(name: str, dtype: torch.dtype) -> None:
    x = data(dtype)
    x64 = x.double().requires_grad_()
    y64 = reference(name)(x64)
    grad = torch.randn(y64.shape).to(dtype)
    y64.backward(grad.double())
    dx = getattr(tex, f"d{name}")(grad, x, None)
    size = grad.double().abs() * 2 if name in PLAIN else torch.cat([grad.double().abs() * 16] * 2, dim=-1)
    magnitude = x64.grad.abs() + size * (1 + x.double().abs())
    assert_within(dx, x64.grad, after_rounding(x64.grad, ROUNDINGS, dtype, magnitude))


@pytest.mark.parametrize("name", list(PLAIN))
def test_bias_gradient_of_delayed_scaling_sums_unrounded_values(name: str) -> None:
    x, grad = data(torch.bfloat16), torch.randn(16, 16).bfloat16()
    bias_grad, dx = getattr(tex, f"dbias_d{name}")(grad, x, delayed(3.0))
    wide = getattr(tex, f"d{name}")(grad.float(), x.float(), None)
    torch.testing.assert_close(bias_grad, wide.sum(0).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(dx._data, tex.quantize(wide, delayed(3.0))._data, rtol=0, atol=0)


@pytest.mark.parametrize("name", list(PLAIN))
def test_delayed_scaling_is_fused_into_the_activation(name: str) -> None:
    x = data(torch.bfloat16)
    quantizer = delayed(3.0)
    result = getattr(tex, name)(x, quantizer)
    wide = getattr(tex, name)(x.float(), None)
    torch.testing.assert_close(result._data, tex.quantize(wide, delayed(3.0))._data, rtol=0, atol=0)
    assert quantizer.amax.item() == wide.abs().max().item()


def test_current_scaling_takes_amax_before_rounding_and_quantizes_after() -> None:
    x = data(torch.bfloat16, limit=3.01)
    result = tex.gelu(x, Float8CurrentScalingQuantizer(tex.DType.kFloat8E4M3, device=torch.device("cpu")))
    wide = tex.gelu(x.float(), None)
    scale = torch.div(torch.tensor(448.0), wide.abs().max())
    assert wide.abs().max() != wide.bfloat16().float().abs().max()
    assert result._scale_inv.item() == scale.reciprocal().item()
    expected = tex.quantize(wide.bfloat16(), delayed(scale.item()))
    torch.testing.assert_close(result._data, expected._data, rtol=0, atol=0)


def test_relu_family_turns_nan_into_zero() -> None:
    x = torch.tensor([[torch.nan, -1.0, 2.0, -0.0]])
    assert tex.relu(x, None).tolist() == [[0.0, 0.0, 2.0, 0.0]]
    assert tex.srelu(x, None).tolist() == [[0.0, 0.0, 4.0, 0.0]]
    ones = torch.ones_like(x)
    assert tex.drelu(ones, x, None).tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert tex.dsrelu(ones, x, None).tolist() == [[0.0, 0.0, 4.0, 0.0]]


def clamped_reference(x: torch.Tensor, limit: float, alpha: float, offset: float) -> torch.Tensor:
    first, gate = x.chunk(2, dim=-1)
    first, gate = first.clamp(max=limit), gate.clamp(-limit, limit) + offset
    return first / (1 + torch.exp(-alpha * first)) * gate


@pytest.mark.parametrize(("limit", "alpha"), [(7.0, 1.702), (2.0, 1.0)])
def test_clamped_swiglu(limit: float, alpha: float) -> None:
    x = data(torch.float32)
    x64 = x.double().requires_grad_()
    y64 = clamped_reference(x64, limit, alpha, 1.0)
    grad = torch.randn(16, 8)
    y64.backward(grad.double())
    y = tex.clamped_swiglu(x, None, limit, alpha)
    dx = tex.clamped_dswiglu(grad, x, None, limit, alpha)
    torch.testing.assert_close(y.double(), y64.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dx.double(), x64.grad, rtol=1e-5, atol=1e-4)
    assert (x.abs() > limit).any()
