"""Matrix products and their epilogues against float64, within the bound of fp32 accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8Quantizer

from .bounds import after_rounding, assert_within

M, N, K = 48, 32, 64
LAYOUTS = pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
TE_DTYPE = {
    torch.float32: tex.DType.kFloat32,
    torch.bfloat16: tex.DType.kBFloat16,
    torch.float16: tex.DType.kFloat16,
}
ROUNDINGS = K + 8


def gemm(
    a: Any,
    b: Any,
    layout: str = "TN",
    *,
    out: Any = None,
    out_dtype: torch.dtype | None = torch.float32,
    **options: Any,
):
    """``tex.generic_gemm`` with the positional arguments that TE passes."""
    return tex.generic_gemm(
        a,
        layout[0] == "T",
        b,
        layout[1] == "T",
        out,
        options.pop("quantizer", None),
        None if out_dtype is None else TE_DTYPE[out_dtype],
        options.pop("bias", None),
        options.pop("bias_dtype", tex.DType.kBFloat16),
        options.pop("gelu", False),
        options.pop("gelu_in", None),
        options.pop("grad", False),
        torch.empty(1, dtype=torch.uint8),
        1,
        options.pop("accumulate", False),
        False,
        **options,
    )


def operands(layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B whose product under ``layout`` is [N, M]; rows over several magnitudes."""
    a = torch.randn(M, K) * torch.exp(torch.randn(M, 1))
    b = torch.randn(N, K) * torch.exp(torch.randn(N, 1))
    a, b = a.to(dtype), b.to(dtype)
    return (a if layout[0] == "T" else a.t().contiguous()), (b.t().contiguous() if layout[1] == "T" else b)


def exact_product(a: torch.Tensor, b: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 product and the sum of the magnitudes of its terms."""
    left = (b.t() if layout[1] == "T" else b).double()
    right = (a.t() if layout[0] == "T" else a).double()
    return left @ right, left.abs() @ right.abs()


def quantizer(scale: float, fp8_dtype: Any = tex.DType.kFloat8E4M3) -> Float8Quantizer:
    return Float8Quantizer(torch.tensor([scale]), torch.zeros(1), fp8_dtype)


def decoded(tensor: Any) -> torch.Tensor:
    """float64 values of a per-tensor FP8 tensor."""
    dtype = torch.float8_e4m3fn if tensor._fp8_dtype == tex.DType.kFloat8E4M3 else torch.float8_e5m2
    return tensor._data.view(dtype).double() * tensor._scale_inv.double()


@LAYOUTS
@DTYPES
def test_plain_product(layout: str, dtype: torch.dtype) -> None:
    a, b = operands(layout, dtype)
    result, bias_grad, gelu_input, extra = gemm(a, b, layout, out_dtype=dtype)
    exact, magnitude = exact_product(a, b, layout)
    assert_within(result, exact, after_rounding(exact, ROUNDINGS, dtype, magnitude))
    assert result.dtype == dtype
    assert (bias_grad, gelu_input, extra) == (None, None, None)


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("formats", [("kFloat8E4M3", "kFloat8E4M3"), ("kFloat8E4M3", "kFloat8E5M2")], ids="-".join)
def test_fp8_product(layout: str, dtype: torch.dtype, formats: tuple[str, str]) -> None:
    a, b = operands(layout, torch.float32)
    qa = tex.quantize(a, quantizer(3.0, tex.DType[formats[0]]))
    qb = tex.quantize(b, quantizer(0.7, tex.DType[formats[1]]))
    result = gemm(qa, qb, layout, out_dtype=dtype)[0]
    exact, magnitude = exact_product(decoded(qa), decoded(qb), layout)
    assert_within(result, exact, after_rounding(exact, ROUNDINGS, dtype, magnitude))


@LAYOUTS
@pytest.mark.usefixtures("capability_10")
def test_fp8_product_without_transposes(layout: str) -> None:
    a, b = operands(layout, torch.float32)
    qa, qb = tex.quantize(a, quantizer(3.0)), tex.quantize(b, quantizer(0.7))
    assert qa._transpose is None
    exact, magnitude = exact_product(decoded(qa), decoded(qb), layout)
    assert_within(gemm(qa, qb, layout)[0], exact, after_rounding(exact, ROUNDINGS, torch.float32, magnitude))


def test_leading_dimensions_of_b_are_kept() -> None:
    a, b = torch.randn(M, K), torch.randn(2, 3, K)
    result = gemm(a, b)[0]
    assert tuple(result.shape) == (2, 3, M)
    torch.testing.assert_close(result, b @ a.t())


@DTYPES
def test_bias_is_added_before_rounding(dtype: torch.dtype) -> None:
    a, b = operands("TN", dtype)
    bias = torch.randn(M).to(dtype)
    exact, magnitude = exact_product(a, b, "TN")
    exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    result = gemm(a, b, bias=bias, out_dtype=dtype)[0]
    assert_within(result, exact, after_rounding(exact, ROUNDINGS, dtype, magnitude))


def test_an_empty_bias_is_no_bias() -> None:
    a, b = operands("TN", torch.float32)
    torch.testing.assert_close(gemm(a, b, bias=torch.empty(0))[0], gemm(a, b)[0], rtol=0, atol=0)


def test_gelu_epilogue_returns_its_input() -> None:
    a, b = operands("TN", torch.bfloat16)
    bias = torch.randn(M, dtype=torch.bfloat16)
    result, _, gelu_input, _ = gemm(a, b, bias=bias, gelu=True, out_dtype=torch.bfloat16)
    exact = exact_product(a, b, "TN")[0] + bias.double()
    assert gelu_input.dtype == torch.bfloat16
    torch.testing.assert_close(gelu_input.double(), exact, rtol=2**-8, atol=1e-3)
    expected = torch.nn.functional.gelu(exact, approximate="tanh")
    torch.testing.assert_close(result.double(), expected, rtol=2**-8, atol=1e-3)


def test_gelu_backward_epilogue() -> None:
    a, b = operands("NN", torch.float32)
    gelu_in = torch.randn(N, M)
    result, bias_grad, _, _ = gemm(a, b, "NN", gelu=True, gelu_in=gelu_in, grad=True, bias=torch.empty(K))
    x = gelu_in.double().requires_grad_()
    torch.nn.functional.gelu(x, approximate="tanh").backward(exact_product(a, b, "NN")[0])
    torch.testing.assert_close(result.double(), x.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias_grad.double(), x.grad.sum(0), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("fp8", [False, True])
def test_bias_gradient_is_the_column_sum_of_b(fp8: bool) -> None:
    a, b = operands("NT", torch.float32)
    if fp8:
        a, b = tex.quantize(a, quantizer(3.0)), tex.quantize(b, quantizer(0.7))
    bias_grad = gemm(a, b, "NT", grad=True, bias=torch.empty(N))[1]
    values = decoded(b) if fp8 else b.double()
    bound = after_rounding(values.sum(0), K + 2, torch.float32, values.abs().sum(0))
    assert_within(bias_grad, values.sum(0), bound)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, None), (0.5, 2.0), (-2.0, 0.25)])
def test_accumulation_into_the_destination(alpha: float, beta: float | None) -> None:
    a, b = operands("NT", torch.float32)
    out = torch.randn(N, M)
    product, magnitude = exact_product(a, b, "NT")
    factor = 1.0 if beta is None else beta
    exact = alpha * product + factor * out.double()
    magnitude = abs(alpha) * magnitude + abs(factor) * out.double().abs()
    result = gemm(a, b, "NT", out=out, accumulate=True, alpha=alpha, beta=beta)[0]
    assert result is out
    assert_within(out, exact, after_rounding(exact, ROUNDINGS, torch.float32, magnitude))


def test_the_destination_is_overwritten_without_accumulation() -> None:
    a, b = operands("TN", torch.float32)
    out = torch.full((N, M), torch.nan)
    assert gemm(a, b, out=out)[0] is out
    torch.testing.assert_close(out, gemm(a, b)[0], rtol=0, atol=0)


def test_delayed_output_is_quantized_from_the_accumulator() -> None:
    """Rounding the product to bf16 first would give other codes."""
    a, b = tex.quantize(torch.randn(M, K), quantizer(1.0)), tex.quantize(torch.randn(N, K), quantizer(1.0))
    fp32 = gemm(a, b)[0]
    output = quantizer(5.0)
    result = gemm(a, b, quantizer=output, out_dtype=torch.bfloat16)[0]
    direct = tex.quantize(fp32, quantizer(5.0))
    torch.testing.assert_close(result._data, direct._data, rtol=0, atol=0)
    assert output.amax.item() == fp32.abs().max().item()
    assert (result._data != tex.quantize(fp32.bfloat16(), quantizer(5.0))._data).any()


def test_output_of_a_plain_product_is_rounded_before_it_is_quantized() -> None:
    a, b = operands("TN", torch.bfloat16)
    rounded = gemm(a, b, out_dtype=torch.bfloat16)[0]
    result = gemm(a, b, quantizer=quantizer(5.0), out_dtype=torch.bfloat16)[0]
    torch.testing.assert_close(result._data, tex.quantize(rounded, quantizer(5.0))._data, rtol=0, atol=0)


def test_empty_products() -> None:
    bias = torch.ones(M)
    assert gemm(torch.empty(M, 0), torch.empty(N, 0), bias=bias)[0].count_nonzero() == 0
    out = torch.ones(N, M)
    gemm(torch.empty(0, M), torch.empty(0, N), "NT", out=out, accumulate=True)
    assert out.eq(1).all()
    assert gemm(torch.empty(0, M), torch.empty(0, N), "NT", grad=True, bias=bias)[1].tolist() == [0.0] * N


def test_refusals() -> None:
    a, b = operands("TN", torch.float32)
    with pytest.raises(RuntimeError, match="Invalid matrix dimensions"):
        gemm(a, b[:, :-1].contiguous())
    with pytest.raises(RuntimeError, match="invalid dims"):
        gemm(a, b, out=torch.empty(N, M + 1))
    with pytest.raises(RuntimeError, match="invalid dtype"):
        gemm(a, b, out=torch.empty(N, M, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="non-zero beta"):
        gemm(a, b, beta=1.0)
    with pytest.raises(RuntimeError, match="compatible scaling modes"):
        gemm(tex.quantize(a, quantizer(1.0)), b)
    with pytest.raises(RuntimeError, match="Leading dimension requirement"):
        gemm(tex.quantize(torch.randn(M, 24), quantizer(1.0)), tex.quantize(torch.randn(N, 24), quantizer(1.0)))
    rowwise = Float8Quantizer(torch.ones(1), torch.zeros(1), tex.DType.kFloat8E4M3, columnwise=False)
    with pytest.raises(RuntimeError, match="column-wise usage"):
        gemm(tex.quantize(torch.randn(K, M), rowwise), tex.quantize(b, quantizer(1.0)), "NN")
    with pytest.raises(NotImplementedError, match="communication overlap"):
        gemm(a, b, comm_overlap=object())
