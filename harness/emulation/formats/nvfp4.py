"""NVFP4 as pure functions: two levels of scales, the random Hadamard transform, the choice between 4 and 6.

Sources: common/cast/nvfp4/*.cuh and common/hadamard_transform/hadamard_transform.cu.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.emulation.enums import DType
from harness.emulation.formats import blocks, fp4, fp8

BLOCK = 16
_FP8_MAX = 448.0
_E4M3 = DType.kFloat8E4M3


@dataclass(frozen=True)
class Mode:
    """How values are quantized.

    Attributes:
        folds_sixth: block scales are ``amax * (s / 6)`` rather than ``(amax / 6) * s``.
        square: one scale per 16 x 16 block instead of 1 x 16.
        stochastic: round up with the probability of the distance.
        e4m3_max: the largest block scale that the global scale aims at, 448 or 256.
        four_over_six: None, or the error ("MAE", "MSE") by which a block chooses to map its amax to 4 or to 6.
    """

    folds_sixth: bool
    square: bool = False
    stochastic: bool = False
    e4m3_max: float = _FP8_MAX
    four_over_six: str | None = None


def global_scale(amax: torch.Tensor, e4m3_max: float = _FP8_MAX) -> torch.Tensor:
    """The fp32 scale that a tensor's (or row's) amax implies: ``e4m3_max * 6 / amax``, at most the largest float.

    1 where amax is 0 or the quotient underflows.
    """
    scale = fp8.quotient(e4m3_max * fp4.FP4_MAX, amax).clamp(max=fp8.FP32_MAX)
    return torch.where((amax == 0) | (scale == 0), torch.ones_like(scale), scale)


def quantize(matrix: torch.Tensor, amax: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8 0..15, the shape of ``matrix``) and E4M3 scale bytes [R, C / 16] of a matrix, along its rows.

    Args:
        matrix: [R, C] with C a multiple of 16 (R too when square).
        amax: fp32[1], or fp32[R, 1] for one global scale per row.
    """
    values = matrix.float()
    rows = BLOCK if mode.square else 1
    block_amax = blocks.block_amax(values, rows, BLOCK)
    if mode.four_over_six is not None:
        return _choose(values, block_amax, amax, rows, mode)
    encode = global_scale(amax, mode.e4m3_max)
    scales = fp8.cast(_block_scale(block_amax, encode, mode.folds_sixth), torch.tensor(1.0), _E4M3)
    scaled = blocks.multiply_blocks(values, _multiplier(scales, encode), rows, BLOCK)
    codes = fp4.encode_stochastic(scaled, torch.rand(scaled.shape)) if mode.stochastic else fp4.encode(scaled)
    return codes, scales.repeat_interleave(rows, dim=0)


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, amax: torch.Tensor, e4m3_max: float = _FP8_MAX
) -> torch.Tensor:
    """fp32 values; ``amax`` fp32[1] or fp32[R, 1], ``scales`` E4M3 bytes [R, C / 16]."""
    inverse = fp8.quotient(1.0, torch.tensor(fp4.FP4_MAX * e4m3_max))
    factor = fp8.decode(scales, _E4M3) * amax * inverse
    return blocks.multiply_blocks(fp4.decode(codes), factor, 1, BLOCK)


def block_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp32 values without the global scale: what a product's inner loop sees."""
    return blocks.multiply_blocks(fp4.decode(codes), fp8.decode(scales, _E4M3), 1, BLOCK)


def hadamard(matrix: torch.Tensor, transform: torch.Tensor) -> torch.Tensor:
    """bf16 ``matrix`` [R, C], every 16 elements along a row times ``transform`` [16, 16], rounded to bf16."""
    vectors = matrix.reshape(-1, BLOCK).float()
    return (vectors @ transform.float()).reshape(matrix.shape).to(matrix.dtype)


def _block_scale(block_amax: torch.Tensor, encode: torch.Tensor, folds_sixth: bool) -> torch.Tensor:
    if folds_sixth:
        sixth = fp8.quotient(1.0, torch.tensor(fp4.FP4_MAX))
        scale = block_amax * (encode * sixth)
    else:
        scale = torch.div(block_amax, torch.tensor(fp4.FP4_MAX)) * encode
    return scale.clamp(max=fp8.FP32_MAX)


def _multiplier(scales: torch.Tensor, encode: torch.Tensor) -> torch.Tensor:
    """What the values of a block are multiplied by: the reciprocal of its rounded scale."""
    decoded = fp8.decode(scales, _E4M3) * fp8.quotient(1.0, encode)
    return fp8.quotient(1.0, decoded).clamp(max=fp8.FP32_MAX)


def _choose(
    values: torch.Tensor, block_amax: torch.Tensor, amax: torch.Tensor, rows: int, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per block, the better of mapping its amax to 4 (scale times 1.5) and to 6; ties go to 6."""
    encode = global_scale(amax, mode.e4m3_max)
    base = torch.div(block_amax, torch.tensor(fp4.FP4_MAX)) * encode
    candidates = []
    for factor in (1.5, 1.0):
        scales = fp8.cast((base * factor).clamp(max=_FP8_MAX), torch.tensor(1.0), _E4M3)
        codes = fp4.encode(blocks.multiply_blocks(values, _multiplier(scales, encode), rows, BLOCK))
        candidates.append((codes, scales, _error(values, codes, scales, amax, rows, mode)))
    (codes4, scales4, error4), (codes6, scales6, error6) = candidates
    pick4 = error4 < error6
    codes = torch.where(blocks.spread(pick4, rows, BLOCK, values.shape), codes4, codes6)
    return codes, torch.where(pick4, scales4, scales6).repeat_interleave(rows, dim=0)


def _error(
    values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, amax: torch.Tensor, rows: int, mode: Mode
) -> torch.Tensor:
    """Summed error of each block in the original domain, added in the order of the elements."""
    scaled = blocks.multiply_blocks(fp4.decode(codes), fp8.decode(scales, _E4M3), rows, BLOCK)
    difference = torch.div(scaled * amax, torch.tensor(fp4.FP4_MAX * mode.e4m3_max)) - values
    error = difference.abs() if mode.four_over_six == "MAE" else difference * difference
    height, width = values.shape
    per_vector = error.reshape(height, width // BLOCK, BLOCK)
    total = per_vector[..., 0]
    for index in range(1, BLOCK):
        total = total + per_vector[..., index]
    if rows == 1:
        return total
    return _tree_sum(total.reshape(height // rows, rows, width // BLOCK))


def _tree_sum(totals: torch.Tensor) -> torch.Tensor:
    """Sum over dimension 1 in halves, as a warp's shuffle reduction does."""
    while totals.shape[1] > 1:
        half = totals.shape[1] // 2
        totals = totals[:, :half] + totals[:, half:]
    return totals[:, 0]
