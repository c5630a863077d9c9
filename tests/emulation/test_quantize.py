"""Quantizing with TE's own quantizers: which buffers, which contents, what is updated and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

from .reference import E4M3, E5M2, fp8_encode

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def delayed(scale: float = 1.0, amax: float = 0.0, fp8_dtype: int = E4M3, **usages: bool) -> Float8Quantizer:
    return Float8Quantizer(torch.tensor([scale]), torch.tensor([amax]), tex.DType(fp8_dtype), **usages)


def current(fp8_dtype: int = E4M3, **options: object) -> Float8CurrentScalingQuantizer:
    return Float8CurrentScalingQuantizer(tex.DType(fp8_dtype), device=torch.device("cpu"), **options)


def wide(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values over many binades, so that every range of the format is met."""
    return (torch.randn(*shape) * torch.exp(4 * torch.randn(*shape))).to(dtype)


@DTYPES
@pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2])
def test_delayed_scaling_is_bit_exact(dtype: torch.dtype, fp8_dtype: int) -> None:
    values = wide(48, 32, dtype=dtype)
    quantizer = delayed(scale=0.37, fp8_dtype=fp8_dtype)
    result = tex.quantize(values, quantizer)
    expected = fp8_encode(values.float().numpy(), np.float32(0.37), fp8_dtype)
    np.testing.assert_array_equal(result._data.numpy(), expected)
    np.testing.assert_array_equal(result._transpose.numpy(), expected.T)
    assert result._scale_inv.item() == np.float32(1) / np.float32(0.37)
    assert quantizer.amax.item() == values.float().abs().max().item()
    assert result.dtype == dtype
    assert result.shape == values.shape


def test_amax_accumulates_and_never_shrinks() -> None:
    quantizer = delayed(amax=5.0)
    tex.quantize(torch.full((4, 4), 3.0), quantizer)
    assert quantizer.amax.item() == 5.0
    tex.quantize(torch.full((4, 4), -8.0), quantizer)
    assert quantizer.amax.item() == 8.0
    tex.quantize(torch.full((4, 4), 1.0), quantizer)
    assert quantizer.amax.item() == 8.0


def test_scales_that_turn_numbers_into_nan() -> None:
    values = torch.tensor([[0.0, 1.0, -2.0, torch.inf]])
    assert tex.quantize(values, delayed(scale=torch.nan))._data.tolist() == [[0x7F] * 4]
    assert tex.quantize(values, delayed(scale=torch.inf))._data.tolist() == [[0x7F, 0x7E, 0xFE, 0x7E]]
    assert tex.quantize(values, delayed(scale=0.0))._data.tolist() == [[0x00, 0x00, 0x80, 0x7F]]


def test_amax_that_is_a_view_of_a_history_is_written_through() -> None:
    history = torch.zeros(3, 2)
    quantizer = Float8Quantizer(torch.ones(1), history[0][1].unsqueeze(0), tex.DType(E4M3))
    tex.quantize(torch.full((4, 4), 2.5), quantizer)
    assert history.tolist() == [[0.0, 2.5], [0.0, 0.0], [0.0, 0.0]]


@DTYPES
@pytest.mark.parametrize("options", [{}, {"force_pow_2_scales": True}, {"amax_epsilon": 10.0}], ids=str)
def test_current_scaling_is_bit_exact(dtype: torch.dtype, options: dict[str, object]) -> None:
    values = torch.randn(48, 32).to(dtype)
    largest = max(values.float().abs().max().numpy(), np.float32(options.get("amax_epsilon", 0.0)))
    scale = np.float32(448.0) / np.float32(largest)
    if options.get("force_pow_2_scales"):
        scale = np.float32(2.0 ** np.floor(np.log2(scale)))
    result = tex.quantize(values, current(**options))
    np.testing.assert_array_equal(result._data.numpy(), fp8_encode(values.float().numpy(), scale, E4M3))
    assert result._scale_inv.item() == np.float32(1) / scale


def test_current_scaling_of_zeros_and_infinities_uses_scale_one() -> None:
    for values in (torch.zeros(16, 16), torch.full((16, 16), torch.inf)):
        assert tex.quantize(values, current())._scale_inv.item() == 1.0


@pytest.mark.parametrize(("rowwise", "columnwise"), [(True, False), (False, True), (True, True)])
def test_usages_decide_the_buffers_on_hopper(rowwise: bool, columnwise: bool) -> None:
    result = tex.quantize(torch.randn(16, 32), delayed(rowwise=rowwise, columnwise=columnwise))
    assert (result._data is not None) == rowwise
    assert (result._transpose is not None) == columnwise
    assert result._transpose_invalid != columnwise


@pytest.mark.usefixtures("capability_10")
def test_blackwell_never_stores_a_transpose() -> None:
    result = tex.quantize(torch.randn(16, 32), delayed(rowwise=False, columnwise=True))
    assert result._data is not None
    assert result._transpose is None


def test_internal_quantizers_make_bare_storages() -> None:
    quantizer = delayed()
    quantizer.internal = True
    assert type(tex.quantize(torch.randn(16, 16), quantizer)).__name__ == "Float8TensorStorage"


def test_updating_in_place_keeps_the_buffers() -> None:
    quantizer = delayed()
    result = tex.quantize(torch.randn(16, 32), quantizer)
    data, transpose, scale_inv = result._data, result._transpose, result._scale_inv
    values = torch.randn(16, 32)
    quantizer.scale.fill_(2.0)
    assert tex.quantize(values, quantizer, result) is result
    assert result._data is data
    assert result._transpose is transpose
    assert result._scale_inv is scale_inv
    assert scale_inv.item() == 0.5
    np.testing.assert_array_equal(data.numpy(), fp8_encode(values.numpy(), np.float32(2), E4M3))
    np.testing.assert_array_equal(transpose.numpy(), data.numpy().T)


def test_updating_adds_and_drops_buffers_as_the_quantizer_says() -> None:
    result = tex.quantize(torch.randn(16, 32), delayed(columnwise=False))
    tex.quantize(torch.randn(16, 32), delayed(columnwise=True), result)
    assert result._transpose is not None
    tex.quantize(torch.randn(16, 32), delayed(columnwise=False), result)
    assert result._transpose is None
    assert result._transpose_invalid


def test_noop_flag_leaves_everything_alone() -> None:
    quantizer = delayed(scale=2.0)
    result = tex.quantize(torch.randn(16, 16), quantizer)
    before = [buffer.clone() for buffer in (result._data, result._transpose, result._scale_inv, quantizer.amax)]
    tex.quantize(torch.randn(16, 16) * 100, quantizer, result, torch.ones(1))
    after = (result._data, result._transpose, result._scale_inv, quantizer.amax)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    tex.quantize(torch.randn(16, 16) * 100, quantizer, result, torch.zeros(1))
    assert not torch.equal(before[0], result._data)


@pytest.mark.parametrize("shape", [(0, 16), (4, 0, 16)])
def test_empty_tensors_leave_amax_alone(shape: tuple[int, ...]) -> None:
    quantizer = delayed(amax=3.0)
    result = tex.quantize(torch.empty(shape), quantizer)
    assert tuple(result._data.shape) == shape
    assert quantizer.amax.item() == 3.0


def test_leading_dimensions_are_kept_and_the_transpose_moves_the_last_one_first() -> None:
    values = torch.randn(2, 3, 8)
    result = tex.quantize(values, delayed())
    assert tuple(result._transpose.shape) == (8, 2, 3)
    np.testing.assert_array_equal(result._transpose.numpy(), np.moveaxis(result._data.numpy(), -1, 0))


@DTYPES
def test_dequantize_multiplies_by_the_inverse_scale(dtype: torch.dtype) -> None:
    values = torch.randn(16, 16)
    result = tex.quantize(values, delayed(scale=3.0))
    decoded = tex.dequantize(
        result, tex.DType[{torch.float32: "kFloat32", torch.bfloat16: "kBFloat16"}.get(dtype, "kFloat16")]
    )
    expected = result._data.view(torch.float8_e4m3fn).float() * torch.tensor(3.0).reciprocal()
    torch.testing.assert_close(decoded, expected.to(dtype), rtol=0, atol=0)


def test_bias_gradient_is_summed_in_fp32() -> None:
    grad = torch.full((4096, 16), 1.0009765625).to(torch.bfloat16)
    grad[0] = 256.0
    bias_grad, quantized = tex.bgrad_quantize(grad, delayed())
    assert bias_grad.dtype == torch.bfloat16
    torch.testing.assert_close(bias_grad, grad.double().sum(0).to(torch.bfloat16), rtol=0, atol=0)
    torch.testing.assert_close(quantized._data, tex.quantize(grad, delayed())._data, rtol=0, atol=0)
    assert tex.bgrad_quantize(grad, None)[1] is grad


def test_kernels_write_as_raw_memory() -> None:
    quantizer = delayed()
    with torch.inference_mode():
        result = tex.quantize(torch.randn(16, 16), quantizer)
    tex.quantize(torch.zeros(16, 16), quantizer, result)  # torch alone refuses to update inference tensors here
    assert result._data.count_nonzero() == 0

    result = tex.quantize(torch.randn(16, 16), quantizer)
    version = result._data._version
    tex.quantize(torch.zeros(16, 16), quantizer, result)
    assert result._data._version == version


def test_quantize_ignores_autograd_and_accepts_strided_input() -> None:
    values = torch.randn(32, 16, requires_grad=True)
    result = tex.quantize(values.t(), delayed())
    assert not result._data.requires_grad
    np.testing.assert_array_equal(result._data.numpy(), fp8_encode(values.detach().t().numpy(), np.float32(1), E4M3))


def test_split_and_multi_quantize_equal_one_at_a_time() -> None:
    values = torch.randn(48, 16)
    parts = tex.split_quantize(values, [16, 32], [delayed(2.0), delayed(4.0)])
    again = tex.multi_tensor_quantize(list(values.split([16, 32])), [delayed(2.0), delayed(4.0)])
    for part, other, scale, piece in zip(parts, again, (2.0, 4.0), values.split([16, 32]), strict=True):
        expected = fp8_encode(piece.numpy(), np.float32(scale), E4M3)
        np.testing.assert_array_equal(part._data.numpy(), expected)
        np.testing.assert_array_equal(other._data.numpy(), expected)


def test_transpose_amax_and_swap() -> None:
    codes = torch.randint(0, 256, (4, 6), dtype=torch.uint8)
    torch.testing.assert_close(tex.fp8_transpose(codes, tex.DType.kFloat8E4M3, out=None), codes.t())
    out = torch.zeros(6, 4, dtype=torch.uint8)
    assert tex.fp8_transpose(codes, tex.DType.kFloat8E4M3, out=out) is out
    torch.testing.assert_close(out, codes.t())
    amax = torch.zeros(1)
    tex.compute_amax(torch.tensor([1.0, -4.0, torch.nan]), amax)
    assert amax.item() == 4.0
    tensor = torch.randn(2, 3, 4)
    torch.testing.assert_close(tex.swap_first_dims(tensor), tensor.transpose(0, 1))
    with pytest.raises(RuntimeError, match="Invalid input tensor dimensions"):
        tex.swap_first_dims(torch.randn(3))
