"""E8M0, FP4, scale order and blocks against tables, searches and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.emulation.formats import blocks, e8m0, fp4, nvfp4, swizzle

from .reference import E4M3, E5M2, FP4_VALUES, e8m0_of_amax, fp4_encode


def test_every_exponent_decodes_to_its_power_of_two() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    expected = torch.ldexp(torch.ones(255, dtype=torch.float64), torch.arange(255) - 127)
    torch.testing.assert_close(e8m0.decode(exponents).double(), expected, rtol=0, atol=0)
    torch.testing.assert_close(e8m0.reciprocal(exponents).double(), 1 / expected, rtol=0, atol=0)
    assert e8m0.decode(torch.tensor([255], dtype=torch.uint8)).isnan().all()
    assert e8m0.reciprocal(torch.tensor([255], dtype=torch.uint8)).isnan().all()


@pytest.mark.parametrize(("fp8_dtype", "fp8_max"), [(E4M3, 448.0), (E5M2, 57344.0)])
def test_exponent_of_an_amax_is_the_next_power_of_two(fp8_dtype: int, fp8_max: float) -> None:
    generator = np.random.default_rng(0)
    random = np.exp(generator.uniform(-80, 80, 3000)).astype(np.float32)
    powers = (fp8_max * 2.0 ** np.arange(-40, 40)).astype(np.float32)
    largest = np.concatenate([random, powers, np.nextafter(powers, np.inf), np.nextafter(powers, 0), [0.0]])
    largest = largest.astype(np.float32)
    expected = [e8m0_of_amax(float(value), fp8_max) for value in largest]
    assert e8m0.from_amax(torch.from_numpy(largest), fp8_dtype).tolist() == expected


def test_exponents_of_special_values() -> None:
    values = torch.tensor([0.0, torch.inf, torch.nan, 2.0**-127, 2.0**-127 * 1.5, 2.0**-126])
    assert e8m0.round_up(values).tolist() == [0, 254, 255, 0, 1, 1]
    assert e8m0.round_up(torch.tensor([3e38])).tolist() == [254]


def test_fp4_is_the_nearest_code_with_ties_to_even() -> None:
    grid = np.concatenate([FP4_VALUES, (FP4_VALUES[1:] + FP4_VALUES[:-1]) / 2, [7.0, 1e30]]).astype(np.float32)
    values = np.concatenate([grid, np.nextafter(grid, np.inf), np.nextafter(grid, -np.inf)])
    values = np.concatenate([values, -values])
    np.testing.assert_array_equal(fp4.encode(torch.from_numpy(values)).numpy(), fp4_encode(values))
    assert fp4.encode(torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])).tolist() == [7, 7, 15, 8]


def test_fp4_codes_survive_decoding_packing_and_unpacking() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    torch.testing.assert_close(fp4.encode(fp4.decode(codes)), codes)
    packed = fp4.pack(codes.view(2, 8))
    assert packed[0].tolist() == [0x10, 0x32, 0x54, 0x76]
    torch.testing.assert_close(fp4.unpack(packed), codes.view(2, 8))


def test_stochastic_rounding_hits_both_neighbours_with_the_right_frequency() -> None:
    count = 40000
    for value, lower, upper in ((0.1, 0.0, 0.5), (1.3, 1.0, 1.5), (-2.25, -2.0, -3.0), (5.5, 4.0, 6.0)):
        codes = fp4.encode_stochastic(torch.full((count,), value), torch.rand(count))
        decoded = fp4.decode(codes)
        assert set(decoded.abs().tolist()) == {abs(lower), abs(upper)}
        probability = (value - lower) / (upper - lower)
        deviation = 5 * np.sqrt(probability * (1 - probability) / count)
        assert abs((decoded == upper).double().mean().item() - probability) < deviation
    exact = torch.tensor([0.0, 0.5, 6.0, -4.0, 100.0])
    assert fp4.decode(fp4.encode_stochastic(exact, torch.rand(5))).tolist() == [0.0, 0.5, 6.0, -4.0, 6.0]


@pytest.mark.parametrize("shape", [(128, 4), (256, 12)])
def test_swizzle_is_the_documented_order(shape: tuple[int, int]) -> None:
    scales = torch.arange(shape[0] * shape[1]).reshape(shape)
    ordered = swizzle.swizzle(scales).flatten()
    tiles_per_row = shape[1] // 4
    for row in range(0, shape[0], 7):
        for column in range(shape[1]):
            tile = (row // 128) * tiles_per_row + column // 4
            offset = (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4
            assert ordered[tile * 512 + offset] == scales[row, column]
    torch.testing.assert_close(swizzle.unswizzle(swizzle.swizzle(scales)), scales)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (32, 1), (16, 16), (128, 128)])
def test_blocks_equal_loops_also_when_partial(rows: int, columns: int) -> None:
    matrix = torch.randn(70, 150)
    largest = blocks.block_amax(matrix, rows, columns)
    scaled = blocks.multiply_blocks(matrix, largest, rows, columns)
    for i in range(largest.shape[0]):
        for j in range(largest.shape[1]):
            window = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            assert largest[i, j] == matrix[window].abs().max()
            torch.testing.assert_close(scaled[window], matrix[window] * largest[i, j], rtol=0, atol=0)
    spread = blocks.spread(largest, rows, columns, matrix.shape)
    torch.testing.assert_close(matrix * spread, scaled, rtol=0, atol=0)


def test_block_amax_ignores_nan() -> None:
    matrix = torch.tensor([[1.0, torch.nan, torch.nan, torch.nan], [3.0, -5.0, torch.inf, 2.0]])
    assert blocks.block_amax(matrix, 1, 2).tolist() == [[1.0, 0.0], [5.0, torch.inf]]


def test_nvfp4_global_scale() -> None:
    largest = torch.finfo(torch.float32).max
    assert nvfp4.global_scale(torch.tensor([0.0, 2688.0, 1e-38, torch.inf])).tolist() == [1.0, 1.0, largest, 1.0]
    assert nvfp4.global_scale(torch.tensor([2.0]), 256.0).tolist() == [768.0]


def test_hadamard_preserves_length_and_rounds_to_bf16() -> None:
    transform = torch.tensor([[1.0 if bin(i & j).count("1") % 2 == 0 else -1.0 for j in range(16)] for i in range(16)])
    matrix = torch.randn(8, 64).bfloat16()
    result = nvfp4.hadamard(matrix, (transform / 4).bfloat16())
    exact = (matrix.double().reshape(-1, 16) @ (transform.double() / 4)).reshape(8, 64)
    torch.testing.assert_close(result, exact.bfloat16(), rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(result.double().norm(), matrix.double().norm(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("error", ["MAE", "MSE"])
def test_four_over_six_picks_the_smaller_error(error: str) -> None:
    values = torch.randn(64, 128) * torch.exp(torch.randn(64, 1))
    amax = values.abs().max().reshape(1)

    def errors(mode: nvfp4.Mode) -> torch.Tensor:
        codes, scales = nvfp4.quantize(values, amax, mode)
        difference = (nvfp4.dequantize(codes, scales, amax, mode.e4m3_max) - values).double().reshape(64, 8, 16)
        return (difference.abs() if error == "MAE" else difference**2).sum(-1)

    chosen = errors(nvfp4.Mode(folds_sixth=False, e4m3_max=256.0, four_over_six=error))
    six = errors(nvfp4.Mode(folds_sixth=False, e4m3_max=256.0))
    assert (chosen <= six * (1 + 1e-5)).all()
    assert (chosen < six * 0.99).double().mean() > 0.1


@pytest.mark.parametrize("folds_sixth", [False, True])
def test_nvfp4_block_scales_are_rounded_in_the_order_of_the_release(folds_sixth: bool) -> None:
    largest = torch.rand(5000) + 0.1
    encode = torch.tensor([1234.567])
    with_numpy = largest.numpy(), np.float32(1234.567)
    if folds_sixth:
        expected = with_numpy[0] * (with_numpy[1] * (np.float32(1) / np.float32(6)))
    else:
        expected = with_numpy[0] / np.float32(6) * with_numpy[1]
    np.testing.assert_array_equal(nvfp4._block_scale(largest, encode, folds_sixth).numpy(), expected)
