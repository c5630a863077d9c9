"""References that share nothing with the emulation: exact tables of values and searches in float64."""

from __future__ import annotations

import numpy as np

E4M3, E5M2 = 7, 8
"""TE's numbers of the two FP8 formats."""


def fp8_values(fp8_dtype: int) -> np.ndarray:
    """The float64 value of each of the 256 codes, from sign, exponent and mantissa."""
    mantissa_bits, bias = (3, 7) if fp8_dtype == E4M3 else (2, 15)
    values = np.empty(256)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code & 0x7F) >> mantissa_bits
        mantissa = code & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            values[code] = sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            values[code] = sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    if fp8_dtype == E4M3:
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[[0x7C, 0xFC]] = [np.inf, -np.inf]
        values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return values


def fp8_encode(values: np.ndarray, scale: np.float32, fp8_dtype: int) -> np.ndarray:
    """Nearest code of ``values * scale`` (one fp32 multiplication), ties to even, saturating, NaN to 0x7F."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values.astype(np.float32) * np.float32(scale)
    table = fp8_values(fp8_dtype)
    positive = np.array([value for value in table[:0x80] if np.isfinite(value)])
    magnitude = np.minimum(np.abs(scaled.astype(np.float64)), positive[-1])
    above = np.clip(np.searchsorted(positive, magnitude), 1, len(positive) - 1)
    below = above - 1
    middle = (positive[below] + positive[above]) / 2
    tie_goes_up = above % 2 == 0
    upper = (magnitude > middle) | ((magnitude == middle) & tie_goes_up)
    code = np.where(upper, above, below).astype(np.uint8)
    code |= np.where(np.signbit(scaled), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(scaled), 0x7F, code).astype(np.uint8)


FP4_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes of the eight codes of E2M1."""


def fp4_encode(values: np.ndarray) -> np.ndarray:
    """Nearest code of fp32 values, ties to even codes, saturating; the sign is bit 3."""
    codes = np.empty(values.shape, dtype=np.uint8)
    for index, value in np.ndenumerate(values):
        distance = np.abs(FP4_VALUES - min(abs(float(value)), 6.0))
        nearest = np.flatnonzero(distance == distance.min())
        codes[index] = nearest[0] if len(nearest) == 1 or nearest[0] % 2 == 0 else nearest[1]
        codes[index] |= 8 if np.signbit(value) else 0
    return codes


def e8m0_of_amax(largest: float, fp8_max: float) -> int:
    """Exponent of the smallest power of two not below ``amax / fp8_max``, the quotient taken as the kernels take it."""
    quotient = float(np.float32(largest) * (np.float32(1) / np.float32(fp8_max)))
    if quotient == 0:
        return 0
    exponent = int(np.ceil(np.log2(quotient)))
    while 2.0**exponent < quotient:
        exponent += 1
    while 2.0 ** (exponent - 1) >= quotient:
        exponent -= 1
    return max(exponent + 127, 0)
