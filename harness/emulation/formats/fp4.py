"""FP4 (E2M1): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, two codes in a byte.

Source: the PTX conversions that common/cast/nvfp4 uses.
"""

from __future__ import annotations

import torch

FP4_MAX = 6.0

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_SIGNED = torch.cat([_VALUES, -_VALUES])
_SIGN, _LARGEST = 8, 7


def encode(values: torch.Tensor) -> torch.Tensor:
    """The nearest code of each value, uint8 0..15; ties to the even code, saturating, NaN to the largest."""
    magnitude = values.abs()
    codes = torch.zeros(values.shape, dtype=torch.uint8)
    for lower in range(_LARGEST):
        middle = (_VALUES[lower] + _VALUES[lower + 1]) / 2
        codes += magnitude > middle if lower % 2 == 0 else magnitude >= middle
    codes += torch.signbit(values) * _SIGN
    return torch.where(torch.isnan(values), _LARGEST, codes).to(torch.uint8)


def encode_stochastic(values: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One of the two neighbouring codes, the upper one with the probability of the distance to the lower.

    Args:
        uniform: numbers in [0, 1), one per value.
    """
    magnitude = values.abs().clamp(max=FP4_MAX)
    lower = (torch.bucketize(magnitude, _VALUES, right=True) - 1).clamp(0, _LARGEST - 1)
    fraction = (magnitude - _VALUES[lower]) / (_VALUES[lower + 1] - _VALUES[lower])
    codes = lower + (uniform < fraction)
    codes = codes + torch.signbit(values) * _SIGN
    return torch.where(torch.isnan(values), _LARGEST, codes).to(torch.uint8)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of codes 0..15."""
    return _SIGNED[codes.long()]


def pack(codes: torch.Tensor) -> torch.Tensor:
    """[..., C] codes to [..., C / 2] bytes; the even element is in the low half."""
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def unpack(data: torch.Tensor) -> torch.Tensor:
    """The inverse of ``pack``."""
    return torch.stack([data & 0xF, data >> 4], dim=-1).flatten(-2)
