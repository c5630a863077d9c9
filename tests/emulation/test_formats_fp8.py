"""FP8 casts against tables computed from the bit patterns, exhaustively."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.emulation.formats import fp8

from .reference import E4M3, E5M2, fp8_encode, fp8_values

FORMATS = pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
SCALES = [1.0, 3.7, 0.1, 2.0**-20, 2.0**20, 448.0, float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)]


def all_16_bit(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def cast(values: torch.Tensor, scale: float, fp8_dtype: int) -> np.ndarray:
    return fp8.cast(values, torch.tensor(scale), fp8_dtype).numpy()


@FORMATS
def test_every_code_decodes_to_its_value(fp8_dtype: int) -> None:
    decoded = fp8.decode(torch.arange(256, dtype=torch.uint8), fp8_dtype)
    np.testing.assert_array_equal(decoded.numpy().astype(np.float64), fp8_values(fp8_dtype))


@FORMATS
def test_every_code_survives_decoding_and_casting(fp8_dtype: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = fp8.decode(codes, fp8_dtype)
    again = fp8.cast(values, torch.tensor(1.0), fp8_dtype)
    finite = torch.isfinite(values)
    torch.testing.assert_close(again[finite], codes[finite], rtol=0, atol=0)
    assert set(again[values.isnan()].tolist()) == {0x7F}


@FORMATS
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_value_is_cast_to_the_nearest_code(dtype: torch.dtype, scale: float, fp8_dtype: int) -> None:
    values = all_16_bit(dtype)
    expected = fp8_encode(values.float().numpy(), np.float32(scale), fp8_dtype)
    np.testing.assert_array_equal(cast(values, scale, fp8_dtype), expected)


@FORMATS
def test_fp32_values_around_every_rounding_boundary(fp8_dtype: int) -> None:
    table = fp8_values(fp8_dtype)
    positive = np.unique(np.abs(table[np.isfinite(table)]))
    boundaries = np.concatenate([positive, (positive[1:] + positive[:-1]) / 2, [positive[-1] * 1.0625]]).astype(
        np.float32
    )
    neighbours = np.concatenate([boundaries, np.nextafter(boundaries, np.inf), np.nextafter(boundaries, -np.inf)])
    values = np.concatenate([neighbours, -neighbours])
    np.testing.assert_array_equal(
        cast(torch.from_numpy(values), 1.0, fp8_dtype), fp8_encode(values, np.float32(1), fp8_dtype)
    )


@FORMATS
def test_special_values(fp8_dtype: int) -> None:
    largest = int(
        np.flatnonzero(fp8_values(fp8_dtype) == np.nanmax(np.where(np.isinf(v := fp8_values(fp8_dtype)), 0, v)))[0]
    )
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, 0.0, -0.0, 1e30, -1e30])
    expected = [largest, largest | 0x80, 0x7F, 0x7F, 0x00, 0x80, largest, largest | 0x80]
    assert cast(values, 1.0, fp8_dtype).tolist() == expected


def test_amax_ignores_nan_but_not_infinity() -> None:
    assert fp8.amax(torch.tensor([1.0, -3.0, torch.nan, 2.0])).tolist() == [3.0]
    assert fp8.amax(torch.tensor([1.0, -torch.inf, torch.nan])).tolist() == [torch.inf]
    assert fp8.amax(torch.tensor([torch.nan, torch.nan])).tolist() == [0.0]
    assert fp8.amax(torch.empty(0, 4)).tolist() == [0.0]
    assert fp8.amax(torch.tensor([-0.5, 0.25], dtype=torch.bfloat16)).tolist() == [0.5]


@FORMATS
def test_scale_is_the_correctly_rounded_quotient(fp8_dtype: int) -> None:
    largest = torch.from_numpy(np.exp(np.random.default_rng(0).uniform(-70, 80, 20000)).astype(np.float32))
    limit = np.float32(448.0 if fp8_dtype == E4M3 else 57344.0)
    expected = limit / largest.numpy()  # numpy divides in fp32, rounding once
    np.testing.assert_array_equal(fp8.scale_from_amax(largest, float(limit)).numpy(), expected)


def test_scale_of_degenerate_maxima_is_one() -> None:
    degenerate = torch.tensor([0.0, torch.inf, torch.nan])
    assert fp8.scale_from_amax(degenerate, 448.0).tolist() == [1.0, 1.0, 1.0]


def test_scale_overflow_becomes_the_largest_float() -> None:
    tiny = torch.tensor([1e-40])
    assert fp8.scale_from_amax(tiny, 448.0).item() == torch.finfo(torch.float32).max
    assert fp8.scale_from_amax(tiny, 448.0, force_pow_2=True).item() == 2.0**127
    assert fp8.scale_from_amax(tiny, 448.0, value_for_inf=65504.0).item() == 65504.0


def test_scale_options() -> None:
    assert fp8.scale_from_amax(torch.tensor([3.0]), 448.0, force_pow_2=True).item() == 128.0
    assert fp8.scale_from_amax(torch.tensor([0.5, 4.0]), 448.0, epsilon=1.0).tolist() == [448.0, 112.0]
    assert fp8.scale_from_amax(torch.tensor([0.0]), 448.0, epsilon=2.0).item() == 224.0
