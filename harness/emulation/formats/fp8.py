"""FP8 (E4M3, E5M2) values, their maxima and their scales.

Sources: common/util/ptx.cuh and common/utils.cuh (casts), common/recipe/recipe_common.cuh (scale from amax).
"""

from __future__ import annotations

import torch

from harness.emulation.dtypes import FP8_MAX, TORCH_DTYPE

FP32_MAX = torch.finfo(torch.float32).max
_CANONICAL_NAN = 0x7F
_VALUES = {
    fp8_dtype: torch.arange(256, dtype=torch.uint8).view(TORCH_DTYPE[fp8_dtype]).float().numpy()
    for fp8_dtype in FP8_MAX
}
"""fp32 value of every code, by format."""


def extent(values: torch.Tensor) -> tuple[float, bool]:
    """The largest magnitude, ignoring NaN elements, and whether there are any. 0 for no or only NaN elements."""
    if values.numel() == 0:
        return 0.0, False
    low, high = (bound.item() for bound in torch.aminmax(values))
    if high == high:
        return max(-low, high), False
    # A GPU reduction with fmaxf drops NaN, torch's keeps it.
    return values.abs().nan_to_num(nan=0.0, posinf=torch.inf).max().item(), True


def amax(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude as fp32[1]: NaN elements are ignored, infinities are not; 0 for no or only NaN elements."""
    return torch.tensor([extent(values)[0]], dtype=torch.float32)


def quotient(numerator: float, denominator: torch.Tensor) -> torch.Tensor:
    """``numerator / denominator`` rounded once; Python's ``/`` would multiply by a rounded reciprocal."""
    return torch.div(torch.tensor(numerator, dtype=torch.float32), denominator)


def cast(values: torch.Tensor, scale: torch.Tensor | float, fp8_dtype: int, may_have_nan: bool = True) -> torch.Tensor:
    """``saturate(round(values * scale))`` as bytes (uint8, the shape of ``values``).

    Round to nearest even; overflow and infinities saturate in both formats; every NaN becomes 0x7F; the sign of zero
    and subnormals are kept.

    Args:
        values: fp32, bf16 or fp16; widened to fp32 first.
        scale: fp32, broadcastable to ``values``, or a number that fp32 represents.
        fp8_dtype: ``DType.kFloat8E4M3`` or ``DType.kFloat8E5M2``.
        may_have_nan: False when the caller knows that no product is NaN, which saves a pass.
    """
    limit = FP8_MAX[int(fp8_dtype)]
    scaled = values.float() * scale
    codes = scaled.clamp_(-limit, limit).to(TORCH_DTYPE[int(fp8_dtype)]).view(torch.uint8)
    # A maximum propagates NaN and is several times faster than looking at every element.
    if may_have_nan and scaled.numel() and torch.isnan(scaled.amax()):
        codes = codes.masked_fill(torch.isnan(scaled), _CANONICAL_NAN)
    return codes


def decode(codes: torch.Tensor, fp8_dtype: int) -> torch.Tensor:
    """The fp32 values of FP8 bytes, without scale."""
    # A table look-up is as fast as torch's conversion is slow, and NaN and infinities need no care.
    # "wrap" spares the check of the bounds, which no byte exceeds.
    return torch.from_numpy(_VALUES[int(fp8_dtype)].take(codes.numpy(), mode="wrap"))


def scale_from_amax(
    largest: torch.Tensor,
    fp8_max: float,
    *,
    force_pow_2: bool = False,
    epsilon: float = 0.0,
    value_for_inf: float = FP32_MAX,
) -> torch.Tensor:
    """The quantization scale of a tensor or block whose largest magnitude is ``largest`` (fp32, any shape).

    ``fp8_max / max(largest, epsilon)``; 1 where that maximum is 0, infinite or NaN; an infinite quotient becomes
    ``value_for_inf``; with ``force_pow_2`` the result is rounded down to a power of two.
    """
    bounded = torch.where(largest < epsilon, torch.full_like(largest, epsilon), largest)
    scale = quotient(fp8_max, bounded)
    scale = torch.where(torch.isinf(scale), torch.full_like(scale, value_for_inf), scale)
    if force_pow_2:
        scale = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    degenerate = (bounded == 0) | ~torch.isfinite(bounded)
    return torch.where(degenerate, torch.ones_like(scale), scale)
