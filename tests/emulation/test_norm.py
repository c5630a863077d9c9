"""LayerNorm and RMSNorm, forward and backward, against float64 autograd within a bound on fp32 arithmetic."""

from __future__ import annotations

import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

from harness.emulation import settings

from .bounds import after_rounding, assert_within

ROWS, WIDTH, EPS = 24, 96, 1e-5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
CENTERED = pytest.mark.parametrize("zero_centered", [False, True])
TE_DTYPE = {
    torch.float32: tex.DType.kFloat32,
    torch.bfloat16: tex.DType.kBFloat16,
    torch.float16: tex.DType.kFloat16,
}
# Every value passes two reductions over a row and a dozen operations; each row sum has WIDTH roundings.
ROUNDINGS = 3 * WIDTH + 16


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x with rows of different size and offset, gamma, beta, output gradient."""
    x = torch.randn(ROWS, WIDTH) * torch.exp(torch.randn(ROWS, 1)) + 0.3 * torch.randn(ROWS, 1)
    return tuple(t.to(dtype) for t in (x, torch.randn(WIDTH), torch.randn(WIDTH), torch.randn(ROWS, WIDTH)))  # type: ignore[return-value]


def layernorm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (WIDTH,), gamma, beta, EPS)


def rmsnorm(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gamma


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().requires_grad_()


def row_magnitude(x: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Largest magnitude in each row of a float64 tensor, with what was subtracted: the scale of absolute errors."""
    return x.abs().amax(1, keepdim=True) + centre.abs()


@DTYPES
@CENTERED
def test_layernorm_forward(dtype: torch.dtype, zero_centered: bool) -> None:
    x, gamma, beta, _ = inputs(dtype)
    y, mean, rsigma = tex.layernorm_fwd(x, gamma, beta, EPS, None, None, TE_DTYPE[dtype], 0, zero_centered)
    wide = gamma.double() + (1.0 if zero_centered else 0.0)
    exact = layernorm(x.double(), wide, beta.double())
    scale = (x.double().var(1, unbiased=False, keepdim=True) + EPS).rsqrt()
    magnitude = row_magnitude(x.double(), x.double().mean(1, keepdim=True)) * scale * wide.abs() + beta.double().abs()
    assert_within(y, exact, after_rounding(exact, ROUNDINGS, dtype, magnitude))
    assert mean.shape == rsigma.shape == (ROWS,)
    torch.testing.assert_close(mean.double(), x.double().mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rsigma.double(), scale.flatten(), rtol=1e-5, atol=0)


@DTYPES
@CENTERED
def test_rmsnorm_forward(dtype: torch.dtype, zero_centered: bool) -> None:
    x, gamma, _, _ = inputs(dtype)
    y, nothing, rsigma = tex.rmsnorm_fwd(x, gamma, EPS, None, None, TE_DTYPE[dtype], 0, zero_centered)
    exact = rmsnorm(x.double(), gamma.double() + (1.0 if zero_centered else 0.0))
    assert_within(y, exact, after_rounding(exact, ROUNDINGS, dtype))
    assert nothing is None
    torch.testing.assert_close(rsigma.double(), (x.double().square().mean(1) + EPS).rsqrt(), rtol=1e-5, atol=0)


@DTYPES
@CENTERED
def test_layernorm_backward(dtype: torch.dtype, zero_centered: bool) -> None:
    x, gamma, beta, grad = inputs(dtype)
    _, mean, rsigma = tex.layernorm_fwd(x, gamma, beta, EPS, None, None, TE_DTYPE[dtype], 0, zero_centered)
    dx, dgamma, dbeta = tex.layernorm_bwd(grad, x, mean, rsigma, gamma, 0, zero_centered)
    x64, gamma64, beta64 = leaf(x), leaf(gamma), leaf(beta)
    y64 = layernorm(x64, gamma64 + (1.0 if zero_centered else 0.0), beta64)
    y64.backward(grad.double())
    wide = gamma.double() + (1.0 if zero_centered else 0.0)
    largest = (grad.double() * wide).abs().amax(1, keepdim=True) * 8 * rsigma.double().view(-1, 1)
    assert_within(dx, x64.grad, after_rounding(x64.grad, 2 * ROUNDINGS, dtype, largest))
    normalised = (x.double() - x.double().mean(1, keepdim=True)) * rsigma.double().view(-1, 1)
    terms = (grad.double() * (normalised.abs() + 1)).abs().sum(0)
    assert_within(dgamma, gamma64.grad, after_rounding(gamma64.grad, 2 * ROUNDINGS, dtype, terms))
    assert_within(dbeta, beta64.grad, after_rounding(beta64.grad, ROUNDINGS, dtype, grad.double().abs().sum(0)))


@DTYPES
@CENTERED
def test_rmsnorm_backward(dtype: torch.dtype, zero_centered: bool) -> None:
    x, gamma, _, grad = inputs(dtype)
    _, _, rsigma = tex.rmsnorm_fwd(x, gamma, EPS, None, None, TE_DTYPE[dtype], 0, zero_centered)
    dx, dgamma = tex.rmsnorm_bwd(grad, x, rsigma, gamma, 0, zero_centered)
    x64, gamma64 = leaf(x), leaf(gamma)
    rmsnorm(x64, gamma64 + (1.0 if zero_centered else 0.0)).backward(grad.double())
    wide = gamma.double() + (1.0 if zero_centered else 0.0)
    largest = (grad.double() * wide).abs().amax(1, keepdim=True) * 8 * rsigma.double().view(-1, 1)
    assert_within(dx, x64.grad, after_rounding(x64.grad, 2 * ROUNDINGS, dtype, largest))
    terms = (grad.double() * x.double() * rsigma.double().view(-1, 1)).abs().sum(0)
    assert_within(dgamma, gamma64.grad, after_rounding(gamma64.grad, 2 * ROUNDINGS, dtype, terms))


def test_rmsnorm_backward_with_addition_rounds_once() -> None:
    x, gamma, _, grad = inputs(torch.bfloat16)
    add = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    _, _, rsigma = tex.rmsnorm_fwd(x, gamma, EPS, None, None, tex.DType.kBFloat16, 0, False)
    dx, dgamma = tex.rmsnorm_bwd_add(grad, x, add, rsigma, gamma, 0, False)
    plain = tex.rmsnorm_bwd(grad.float(), x.float(), rsigma, gamma.float(), 0, False)[0]
    torch.testing.assert_close(dx, (plain + add.float()).bfloat16(), rtol=0, atol=0)
    assert not torch.equal(dx, plain.bfloat16() + add)
    torch.testing.assert_close(dgamma, tex.rmsnorm_bwd(grad, x, rsigma, gamma, 0, False)[1], rtol=0, atol=0)


def test_delayed_scaling_quantizes_the_unrounded_result() -> None:
    x, gamma, beta, _ = inputs(torch.bfloat16)
    quantizer = Float8Quantizer(torch.tensor([7.0]), torch.zeros(1), tex.DType.kFloat8E4M3)
    result, _, _ = tex.layernorm_fwd(x, gamma, beta, EPS, None, quantizer, tex.DType.kBFloat16, 0, False)
    fp32 = tex.layernorm_fwd(x, gamma, beta, EPS, None, None, tex.DType.kFloat32, 0, False)[0]
    expected = tex.quantize(fp32, Float8Quantizer(torch.tensor([7.0]), torch.zeros(1), tex.DType.kFloat8E4M3))
    torch.testing.assert_close(result._data, expected._data, rtol=0, atol=0)
    assert quantizer.amax.item() == fp32.abs().max().item()
    assert result.dtype == torch.bfloat16


def test_current_scaling_rounds_first_and_takes_amax_where_the_release_does() -> None:
    x, gamma, beta, _ = inputs(torch.bfloat16)
    quantizer = Float8CurrentScalingQuantizer(tex.DType.kFloat8E4M3, device=torch.device("cpu"))
    result, _, _ = tex.layernorm_fwd(x, gamma, beta, EPS, None, quantizer, tex.DType.kBFloat16, 0, False)
    fp32 = tex.layernorm_fwd(x, gamma, beta, EPS, None, None, tex.DType.kFloat32, 0, False)[0]
    seen = fp32.bfloat16().float() if settings.current().facts.norm_amax_of_rounded else fp32
    scale = torch.div(torch.tensor(448.0), seen.abs().max())
    assert result._scale_inv.item() == scale.reciprocal().item()


def test_given_output_tensors_are_written() -> None:
    x, gamma, beta, _ = inputs(torch.float32)
    out = torch.empty_like(x)
    assert tex.layernorm_fwd(x, gamma, beta, EPS, out, None, tex.DType.kFloat32, 0, False)[0] is out
    torch.testing.assert_close(out, layernorm(x, gamma, beta), rtol=1e-4, atol=1e-5)
    quantizer = Float8Quantizer(torch.ones(1), torch.zeros(1), tex.DType.kFloat8E4M3)
    quantized = tex.quantize(torch.zeros_like(x), quantizer)
    assert tex.rmsnorm_fwd(x, gamma, EPS, quantized, quantizer, tex.DType.kFloat32, 0, False)[0] is quantized
    assert quantized._data.count_nonzero() > 0
