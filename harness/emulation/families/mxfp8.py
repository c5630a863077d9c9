"""MXFP8: FP8 with one power-of-two scale per 32 elements, along rows and along columns independently.

Sources: pytorch/csrc/quantizer.cpp; common/cast/mxfp8/quantize_mxfp8.cuh.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import settings, storage
from harness.emulation.families.base import Family, Operand, flat, matrix_size
from harness.emulation.formats import blocks, e8m0, fp8, swizzle

_BLOCK = 32


class MXFP8(Family):
    """Columnwise data keeps the orientation of the tensor."""

    kind = "MXFP8"
    fuses_bias_grad = True

    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        buffers = self.empty(quantizer, values.shape, values.device)
        matrix = flat(values).float()
        square = bool(getattr(quantizer, "with_2d_quantization", False))
        for columnwise, used in ((False, quantizer.rowwise_usage), (True, quantizer.columnwise_usage)):
            if not used:
                continue
            rows, columns = _block_size(columnwise, square)
            exponents = e8m0.from_amax(blocks.block_amax(matrix, rows, columns), quantizer.dtype)
            scaled = blocks.multiply_blocks(matrix, _multiplier(exponents), rows, columns)
            codes = fp8.cast(scaled, torch.tensor(1.0), quantizer.dtype)
            if square:
                # Scales are always stored as if blocks were vectors.
                exponents = exponents.repeat_interleave(_BLOCK, dim=1 if columnwise else 0)
            name = "columnwise" if columnwise else "rowwise"
            buffers[f"_{name}_data"] = codes.view(values.shape)
            buffers[f"_{name}_scale_inv"] = _stored(exponents, columnwise, storage.swizzles(quantizer, values.shape))
        return buffers

    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        rows, columns = _checked_size(shape)
        buffers: storage.Buffers = dict.fromkeys(storage.BLOCK_BUFFERS)
        for name, used in (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage)):
            if used:
                size = _scale_shape(rows, columns, name == "columnwise")
                buffers[f"_{name}_data"] = torch.empty(shape, dtype=torch.uint8, device=device)
                buffers[f"_{name}_scale_inv"] = torch.zeros(size, dtype=torch.uint8, device=device)
        return buffers

    def decode(self, tensor: Any) -> torch.Tensor:
        columnwise = tensor._rowwise_data is None
        return self.operand(tensor, columnwise).matrix.reshape(self.shape(tensor))

    def operand(self, tensor: Any, columnwise: bool) -> Operand:
        data = tensor._columnwise_data if columnwise else tensor._rowwise_data
        exponents = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
        if data is None:
            raise RuntimeError(f"Input is missing {'column' if columnwise else 'row'}-wise usage")
        values = flat(fp8.decode(data, tensor._fp8_dtype))
        if getattr(tensor, "_with_gemm_swizzled_scales", False):
            exponents = _unswizzled(exponents, columnwise)
        rows, columns = _block_size(columnwise, square=False)
        used = exponents[: values.shape[0] // rows, : values.shape[1] // columns]
        return Operand(blocks.multiply_blocks(values, e8m0.decode(used), rows, columns), None, self.kind)

    def shape(self, tensor: Any) -> torch.Size:
        return (tensor._rowwise_data if tensor._rowwise_data is not None else tensor._columnwise_data).shape


def _block_size(columnwise: bool, square: bool) -> tuple[int, int]:
    if square:
        return _BLOCK, _BLOCK
    return (_BLOCK, 1) if columnwise else (1, _BLOCK)


def _multiplier(exponents: torch.Tensor) -> torch.Tensor:
    """What the values of a block are multiplied by; 2.9 has two special cases that later releases corrected."""
    factors = e8m0.reciprocal(exponents)
    if settings.current().facts.e8m0_reciprocal_has_gaps:
        factors = torch.where(exponents == 0, 1.0, factors)
        factors = torch.where(exponents == 0xFE, 0.0, factors)
    return factors


def _checked_size(shape: torch.Size) -> tuple[int, int]:
    rows, columns = matrix_size(shape)
    if rows % _BLOCK or columns % _BLOCK:
        raise RuntimeError(
            f"MXFP8 requires tensor dims that are divisible by {_BLOCK} (got shape=({','.join(map(str, shape))}))"
        )
    return rows, columns


def _scale_shape(rows: int, columns: int, columnwise: bool) -> tuple[int, int]:
    if columnwise:
        return blocks.round_up(rows // _BLOCK, 4), blocks.round_up(columns, 128)
    return blocks.round_up(rows, 128), blocks.round_up(columns // _BLOCK, 4)


def _stored(exponents: torch.Tensor, columnwise: bool, swizzled: bool) -> torch.Tensor:
    """Exponents padded to their buffer and, if asked for, in GEMM order (columnwise ones as their transpose)."""
    height, width = exponents.shape
    if columnwise:
        full = blocks.padded(exponents, blocks.round_up(height, 4), blocks.round_up(width, 128))
        return swizzle.swizzle(full.t()).reshape(full.shape) if swizzled else full
    full = blocks.padded(exponents, blocks.round_up(height, 128), blocks.round_up(width, 4))
    return swizzle.swizzle(full) if swizzled else full


def _unswizzled(exponents: torch.Tensor, columnwise: bool) -> torch.Tensor:
    if columnwise:
        return swizzle.unswizzle(exponents.reshape(exponents.shape[1], exponents.shape[0])).t()
    return swizzle.unswizzle(exponents)
