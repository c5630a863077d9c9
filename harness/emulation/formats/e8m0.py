"""E8M0: powers of two from 2**-127 to 2**127 as biased exponents, 255 is NaN.

Source: common/util/ptx.cuh (``float_to_e8m0``, ``exp2f_rcp``, ``exp2f``).
"""

from __future__ import annotations

import torch

from harness.emulation.dtypes import FP8_MAX
from harness.emulation.formats import fp8


def from_amax(largest: torch.Tensor, fp8_dtype: int) -> torch.Tensor:
    """The exponent by which a block with this largest magnitude is scaled down: ``amax / fp8_max`` rounded up.

    uint8, the shape of ``largest``. 0 gives 0, infinity 254, NaN 255.
    """
    reciprocal = fp8.quotient(1.0, torch.tensor(FP8_MAX[int(fp8_dtype)]))
    return round_up(largest * reciprocal)


def round_up(values: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below each value (fp32, not negative), as a biased exponent."""
    bits = values.contiguous().view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    mantissa = bits & 0x7FFFFF
    # The subnormals up to 2**-127 are represented by exponent 0 itself.
    tiny = (exponent == 0) & (mantissa <= 0x400000)
    exponent = exponent + ((mantissa > 0) & (exponent < 0xFE) & ~tiny)
    exponent = torch.where(torch.isinf(values), 0xFE, exponent)
    return torch.where(torch.isnan(values), 0xFF, exponent).to(torch.uint8)


def decode(exponents: torch.Tensor) -> torch.Tensor:
    """``2 ** (e - 127)`` in fp32; NaN for 255."""
    wide = exponents.int()
    values = torch.where(wide == 0, 0x00400000, wide << 23).view(torch.float32)
    return torch.where(wide == 0xFF, torch.nan, values)


def reciprocal(exponents: torch.Tensor) -> torch.Tensor:
    """``2 ** (127 - e)`` in fp32; NaN for 255."""
    wide = exponents.int()
    values = torch.where(wide == 0xFE, 0x00400000, (0xFE - wide) << 23).view(torch.float32)
    return torch.where(wide == 0xFF, torch.nan, values)
