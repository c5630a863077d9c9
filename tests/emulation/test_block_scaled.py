"""Tensors with a scale per block: 128-block FP8, MXFP8, NVFP4. Contents against loops, products against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

from harness.emulation import families, settings
from harness.emulation.formats import fp4

from .bounds import after_rounding, assert_within
from .reference import E4M3, E5M2, e8m0_of_amax, fp4_encode, fp8_encode, fp8_values
from .test_gemm import gemm

KINDS = pytest.mark.parametrize("kind", ["block 1D", "block 2D", "mxfp8", "nvfp4", "nvfp4 2D"])


def quantizer(kind: str, fp8_dtype: int = E4M3, **options: Any) -> Any:
    usages = {"rowwise": options.pop("rowwise", True), "columnwise": options.pop("columnwise", True)}
    if kind.startswith("block"):
        dimensions = 1 if kind == "block 1D" else 2
        return Float8BlockQuantizer(tex.DType(fp8_dtype), block_scaling_dim=dimensions, **usages, **options)
    if kind == "mxfp8":
        return MXFP8Quantizer(tex.DType(fp8_dtype), **usages, **options)
    return NVFP4Quantizer(with_2d_quantization=kind.endswith("2D"), **usages, **options)


def rows_of_different_size(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns) * torch.exp(2 * torch.randn(rows, 1))


def decoded(tensor: Any, columnwise: bool) -> torch.Tensor:
    """float64 values as a product sees them, in the orientation of the tensor."""
    operand = families.of_tensor(tensor).operand(tensor, columnwise)
    factor = 1.0 if operand.factor is None else operand.factor.double() / operand.divisor
    return operand.matrix.double() * factor


@pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2])
@pytest.mark.parametrize("force_pow_2", [True, False])
def test_vectors_of_128(fp8_dtype: int, force_pow_2: bool) -> None:
    values = rows_of_different_size(12, 300)
    result = tex.quantize(values, quantizer("block 1D", fp8_dtype, force_pow_2_scales=force_pow_2))
    limit = np.float32(448.0 if fp8_dtype == E4M3 else 57344.0)
    for row in range(12):
        for block in range(3):
            window = values[row, block * 128 : (block + 1) * 128].numpy()
            scale = limit / np.abs(window).max()
            if force_pow_2:
                scale = np.float32(2.0 ** np.floor(np.log2(scale)))
            codes = result._rowwise_data[row, block * 128 : (block + 1) * 128]
            np.testing.assert_array_equal(codes.numpy(), fp8_encode(window, scale, fp8_dtype))
            assert result._rowwise_scale_inv[block, row].item() == np.float32(1) / scale
    assert tuple(result._rowwise_scale_inv.shape) == (3, 12)
    assert tuple(result._columnwise_data.shape) == (300, 12)
    assert tuple(result._columnwise_scale_inv.shape) == (1, 300)


def test_scales_of_tiny_blocks_stop_at_the_largest_value_of_the_input_type() -> None:
    tiny = torch.full((16, 128), 1e-38, dtype=torch.bfloat16)
    result = tex.quantize(tiny, quantizer("block 1D", force_pow_2_scales=False, columnwise=False))
    assert result._rowwise_scale_inv[0, 0].item() == (1 / torch.tensor(torch.finfo(torch.bfloat16).max)).item()


def test_columnwise_vectors_are_the_transposed_tensor_quantized_for_itself() -> None:
    values = rows_of_different_size(256, 160)
    both = tex.quantize(values, quantizer("block 1D"))
    transposed = tex.quantize(values.t().contiguous(), quantizer("block 1D", columnwise=False))
    torch.testing.assert_close(both._columnwise_data, transposed._rowwise_data)
    torch.testing.assert_close(both._columnwise_scale_inv, transposed._rowwise_scale_inv)


def test_square_blocks_share_one_scale() -> None:
    values = rows_of_different_size(200, 256)
    result = tex.quantize(values, quantizer("block 2D"))
    assert tuple(result._rowwise_scale_inv.shape) == (2, 4)
    for i in range(2):
        for j in range(2):
            window = values[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128].numpy()
            scale = np.float32(2.0 ** np.floor(np.log2(np.float32(448.0) / np.abs(window).max())))
            assert result._rowwise_scale_inv[i, j].item() == 1 / scale
            assert result._columnwise_scale_inv[j, i].item() == 1 / scale
    torch.testing.assert_close(result._columnwise_data, result._rowwise_data.t())


@pytest.mark.skipif(not settings.current().facts.block_format_is_chosen, reason="this release has one layout")
def test_compact_layout_keeps_the_orientation_of_the_input() -> None:
    values = rows_of_different_size(130, 256)
    ready = tex.quantize(values, quantizer("block 1D"))
    compact = tex.quantize(values, quantizer("block 1D", all_gather_usage=True))
    torch.testing.assert_close(compact._rowwise_data, ready._rowwise_data)
    torch.testing.assert_close(compact._rowwise_scale_inv, ready._rowwise_scale_inv[:, :130].t())
    torch.testing.assert_close(compact._columnwise_data, ready._columnwise_data.t())
    torch.testing.assert_close(compact._columnwise_scale_inv, ready._columnwise_scale_inv[:, :256])
    assert tuple(families.of_tensor(compact).shape(compact)) == (130, 256)
    torch.testing.assert_close(tex.dequantize(compact, tex.DType.kFloat32), tex.dequantize(ready, tex.DType.kFloat32))


@pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2])
@pytest.mark.parametrize("columnwise", [False, True])
def test_mxfp8_vectors_of_32(fp8_dtype: int, columnwise: bool) -> None:
    values = rows_of_different_size(64, 96)
    values[:, 5] = 0.0
    values[32:, 7] = 0.0
    result = tex.quantize(values, quantizer("mxfp8", fp8_dtype))
    data = result._columnwise_data if columnwise else result._rowwise_data
    scales = result._columnwise_scale_inv if columnwise else result._rowwise_scale_inv
    oriented, codes, exponents = (t.t() if columnwise else t for t in (values, data, scales))
    limit = 448.0 if fp8_dtype == E4M3 else 57344.0
    for row in range(oriented.shape[0]):
        for block in range(oriented.shape[1] // 32):
            window = oriented[row, block * 32 : (block + 1) * 32].numpy()
            exponent = e8m0_of_amax(float(np.abs(window).max()), limit)
            assert exponents[row, block].item() == exponent
            expected = fp8_encode(window, np.float32(2.0 ** (127 - exponent)), fp8_dtype) if exponent else 0
            np.testing.assert_array_equal(codes[row, block * 32 : (block + 1) * 32].numpy() & 0x7F, expected & 0x7F)
    assert tuple(result._rowwise_scale_inv.shape) == (128, 4)
    assert tuple(result._columnwise_scale_inv.shape) == (4, 128)


@pytest.mark.parametrize("columnwise", [False, True])
def test_nvfp4_vectors_of_16(columnwise: bool) -> None:
    values = rows_of_different_size(32, 48)
    result = tex.quantize(values, quantizer("nvfp4"))
    oriented = values.t().numpy() if columnwise else values.numpy()
    codes = fp4.unpack(result._columnwise_data if columnwise else result._rowwise_data)
    scales = result._columnwise_scale_inv if columnwise else result._rowwise_scale_inv
    amax = np.abs(oriented).max()
    encode = np.float32(2688.0) / amax
    decode = np.float32(1) / encode
    for row in range(oriented.shape[0]):
        for block in range(oriented.shape[1] // 16):
            window = oriented[row, block * 16 : (block + 1) * 16]
            largest = np.abs(window).max()
            if settings.current().facts.nvfp4_folds_sixth:
                scale = largest * (encode * (np.float32(1) / np.float32(6)))
            else:
                scale = largest / np.float32(6) * encode
            scale8 = fp8_encode(np.array([scale]), np.float32(1), E4M3)[0]
            assert scales[row, block].item() == scale8
            multiplier = np.float32(1) / (np.float32(fp8_values(E4M3)[scale8]) * decode)
            expected = fp4_encode(window * multiplier)
            np.testing.assert_array_equal(codes[row, block * 16 : (block + 1) * 16].numpy(), expected)
    stored = result._amax_columnwise if columnwise else result._amax_rowwise
    assert stored.item() == amax


def test_nvfp4_square_blocks_have_one_scale_in_both_orientations() -> None:
    values = rows_of_different_size(32, 64)
    result = tex.quantize(values, quantizer("nvfp4 2D"))
    scales = result._rowwise_scale_inv[:32, :4]
    assert torch.equal(scales, scales[::16].repeat_interleave(16, dim=0))
    torch.testing.assert_close(result._columnwise_scale_inv[:64, :2], scales[::16].t().repeat_interleave(16, dim=0))
    rowwise, columnwise = fp4.unpack(result._rowwise_data), fp4.unpack(result._columnwise_data)
    torch.testing.assert_close(columnwise, rowwise.t())


def test_nvfp4_hadamard_goes_into_the_columnwise_copy_only() -> None:
    values = rows_of_different_size(64, 48).bfloat16()
    turned = tex.quantize(values, quantizer("nvfp4", with_rht=True, with_post_rht_amax=True))
    plain = tex.quantize(values, quantizer("nvfp4"))
    torch.testing.assert_close(turned._rowwise_data, plain._rowwise_data)
    transform = turned._quantizer.rht_matrix.double()
    expected = (values.double().t().reshape(-1, 16) @ transform).reshape(48, 64).t()
    error = (decoded(turned, columnwise=True) - expected).abs().max() / expected.abs().max()
    assert error < 0.2
    assert turned._amax_columnwise.item() == expected.bfloat16().double().abs().max().item()
    # The transform is orthogonal: a product over the transformed dimension stays what it was.
    exact = values.double().t() @ values.double()
    product = decoded(turned, True).t() @ decoded(turned, True)
    assert (product - exact).norm() / exact.norm() < 0.2
    with pytest.raises(RuntimeError, match="bfloat16"):
        tex.quantize(values.float(), quantizer("nvfp4", with_rht=True, with_post_rht_amax=True))


def test_nvfp4_stochastic_rounding_is_right_on_average() -> None:
    values = rows_of_different_size(16, 64)
    chosen = quantizer("nvfp4", stochastic_rounding=True, columnwise=False)
    mean = torch.stack([decoded(tex.quantize(values, chosen), False) for _ in range(400)]).mean(0)
    rounded = decoded(tex.quantize(values, quantizer("nvfp4", columnwise=False)), False)
    # Saturating elements cannot average out; everything else must lie far closer than rounding to nearest does.
    assert (mean - values.double()).norm() < 0.2 * (rounded - values.double()).norm()


@pytest.mark.skipif(not settings.current().facts.nvfp4_has_variants, reason="2.9 has no such option")
@pytest.mark.parametrize("mode", ["MAE", "MSE"])
def test_four_over_six_never_loses_to_plain_rounding(mode: str) -> None:
    values = rows_of_different_size(32, 64)
    chosen = quantizer("nvfp4", columnwise=False, nvfp4_use_4over6=True, nvfp4_4over6_err_mode=mode)
    result = tex.quantize(values, chosen)
    plain = tex.quantize(values, quantizer("nvfp4", columnwise=False, nvfp4_e4m3_max=chosen.nvfp4_e4m3_max))

    def errors(tensor: Any) -> torch.Tensor:
        difference = (decoded(tensor, False) - values.double()).reshape(32, 4, 16)
        return (difference.abs() if mode == "MAE" else difference**2).sum(-1)

    assert (errors(result) <= errors(plain) * (1 + 1e-5)).all()
    assert (errors(result) < errors(plain) * 0.99).any()


@pytest.mark.skipif(not settings.current().facts.scales_can_be_swizzled, reason="2.9 stores scales in one order")
@pytest.mark.parametrize("columnwise", [False, True])
def test_swizzled_scales_mean_the_same(columnwise: bool) -> None:
    values = rows_of_different_size(160, 256)
    plain, ordered = quantizer("mxfp8"), quantizer("mxfp8")
    ordered.optimize_for_gemm = True
    natural, swizzled = tex.quantize(values, plain), tex.quantize(values, ordered)
    assert swizzled._with_gemm_swizzled_scales
    assert not torch.equal(natural._rowwise_scale_inv, swizzled._rowwise_scale_inv)
    torch.testing.assert_close(decoded(natural, columnwise), decoded(swizzled, columnwise), rtol=0, atol=0)
    tex.swizzle_scales_for_gemm_(natural)
    torch.testing.assert_close(natural._rowwise_scale_inv, swizzled._rowwise_scale_inv)
    torch.testing.assert_close(natural._columnwise_scale_inv, swizzled._columnwise_scale_inv)


@KINDS
def test_dequantize_is_what_products_see(kind: str) -> None:
    values = rows_of_different_size(128, 256)
    result = tex.quantize(values, quantizer(kind))
    torch.testing.assert_close(
        tex.dequantize(result, tex.DType.kFloat32).double(), decoded(result, False), rtol=1e-6, atol=0
    )
    relative = (decoded(result, False) - values.double()).norm() / values.double().norm()
    assert relative < (0.2 if kind.startswith("nvfp4") else 0.05)


@KINDS
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_products(kind: str, layout: str) -> None:
    a, b = rows_of_different_size(128, 256), rows_of_different_size(64, 256)
    a = a if layout[0] == "T" else a.t().contiguous()
    b = b.t().contiguous() if layout[1] == "T" else b
    other = {"block 2D": "block 1D"}.get(kind, kind)
    qa, qb = tex.quantize(a, quantizer(kind)), tex.quantize(b, quantizer(other))
    left, right = decoded(qb, layout[1] == "T"), decoded(qa, layout[0] != "T")
    left, right = (left.t() if layout[1] == "T" else left), (right.t() if layout[0] == "T" else right)
    exact, magnitude = left @ right, left.abs() @ right.abs()
    assert_within(gemm(qa, qb, layout)[0], exact, after_rounding(exact, 256 + 12, torch.float32, magnitude))


@KINDS
def test_updating_in_place_and_empty_tensors(kind: str) -> None:
    chosen = quantizer(kind)
    result = tex.quantize(rows_of_different_size(128, 128), chosen)
    data, scales = result._rowwise_data, result._rowwise_scale_inv
    values = rows_of_different_size(128, 128)
    tex.quantize(values, chosen, result)
    assert result._rowwise_data is data
    assert result._rowwise_scale_inv is scales
    torch.testing.assert_close(data, tex.quantize(values, chosen)._rowwise_data)
    before = data.clone()
    tex.quantize(values * 3 + 1, chosen, result, torch.ones(1))
    torch.testing.assert_close(data, before)
    assert tex.quantize(torch.empty(0, 128), chosen).shape == (0, 128)


def test_sizes_that_the_formats_do_not_take() -> None:
    with pytest.raises(RuntimeError, match="divisible by 32"):
        tex.quantize(torch.randn(16, 32), quantizer("mxfp8"))
    with pytest.raises(RuntimeError, match="divisible by 16"):
        tex.quantize(torch.randn(8, 32), quantizer("nvfp4"))
    square = tex.quantize(torch.randn(128, 128), quantizer("block 2D"))
    with pytest.raises(RuntimeError, match="1D by 1D"):
        gemm(square, square)
    odd = tex.quantize(torch.randn(20, 128), quantizer("block 1D"))
    with pytest.raises(RuntimeError, match="Outer dimension"):
        gemm(odd, odd)
