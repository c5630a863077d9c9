"""FP8 with one fp32 scale per 1 x 128 vector or 128 x 128 block.

Sources: pytorch/csrc/quantizer.cpp; common/transpose/quantize_transpose_vector_blockwise.cu and
quantize_transpose_square_blockwise.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import settings, storage
from harness.emulation.dtypes import FP8_MAX
from harness.emulation.families.base import Family, Operand, flat, matrix_size, transposed_shape
from harness.emulation.formats import blocks, fp8

_BLOCK = 128


class BlockScaling(Family):
    """Columnwise data is the transposed tensor, quantized for itself."""

    kind = "block FP8"

    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        matrix = flat(values).float()
        limit = torch.finfo(dtype).max
        buffers = self.empty(quantizer, values.shape, values.device)
        if quantizer.rowwise_usage:
            codes, inverse = _quantize(matrix, quantizer, limit)
            buffers["_rowwise_data"] = codes.view(values.shape)
            _store(buffers, "_rowwise_scale_inv", inverse if _keeps_order(quantizer) else inverse.t())
        if quantizer.columnwise_usage:
            codes, inverse = _quantize(matrix.t().contiguous(), quantizer, limit)
            compact = is_compact(quantizer)
            buffers["_columnwise_data"] = (
                codes.t().contiguous().view(values.shape) if compact else codes.view(transposed_shape(values.shape))
            )
            _store(buffers, "_columnwise_scale_inv", inverse if _is_square(quantizer) else inverse.t())
        return buffers

    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        rows, columns = matrix_size(shape)
        buffers: storage.Buffers = dict.fromkeys(storage.BLOCK_BUFFERS)
        if quantizer.rowwise_usage:
            buffers["_rowwise_data"] = torch.empty(shape, dtype=torch.uint8, device=device)
            size = _rowwise_scale_shape(quantizer, rows, columns)
            buffers["_rowwise_scale_inv"] = torch.zeros(size, dtype=torch.float32, device=device)
        if quantizer.columnwise_usage:
            data_shape = shape if is_compact(quantizer) else transposed_shape(shape)
            buffers["_columnwise_data"] = torch.empty(data_shape, dtype=torch.uint8, device=device)
            size = _columnwise_scale_shape(quantizer, rows, columns)
            buffers["_columnwise_scale_inv"] = torch.zeros(size, dtype=torch.float32, device=device)
        return buffers

    def decode(self, tensor: Any) -> torch.Tensor:
        columnwise = tensor._rowwise_data is None
        return self.operand(tensor, columnwise).matrix.reshape(self.shape(tensor)).contiguous()

    def operand(self, tensor: Any, columnwise: bool) -> Operand:
        data = tensor._columnwise_data if columnwise else tensor._rowwise_data
        inverse = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
        if data is None:
            raise RuntimeError(f"Input is missing {'column' if columnwise else 'row'}-wise usage")
        square = bool(tensor._is_2D_scaled)
        if columnwise and not _tensor_is_compact(tensor):
            values = fp8.decode(data, tensor._fp8_dtype)
            values = values.reshape(values.shape[0] if values.dim() else 1, -1)
        else:
            values = flat(fp8.decode(data, tensor._fp8_dtype))
        matrix = _dequantize(values, inverse, square, columnwise, _tensor_is_compact(tensor))
        if columnwise and not _tensor_is_compact(tensor):
            matrix = matrix.t()
        return Operand(matrix, None, self.kind, two_dimensional=square)

    def shape(self, tensor: Any) -> torch.Size:
        if tensor._rowwise_data is not None:
            return tensor._rowwise_data.shape
        columnwise = tensor._columnwise_data.shape
        return columnwise if _tensor_is_compact(tensor) else torch.Size([*columnwise[1:], *columnwise[:1]])


def _quantize(matrix: torch.Tensor, quantizer: Any, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and inverse scales [row of blocks, column of blocks] of a matrix quantized along its rows."""
    rows = _BLOCK if _is_square(quantizer) else 1
    scale = fp8.scale_from_amax(
        blocks.block_amax(matrix, rows, _BLOCK),
        FP8_MAX[int(quantizer.dtype)],
        force_pow_2=quantizer.force_pow_2_scales,
        epsilon=quantizer.amax_epsilon,
        value_for_inf=limit,
    )
    scaled = blocks.multiply_blocks(matrix, scale, rows, _BLOCK)
    return fp8.cast(scaled, torch.tensor(1.0), quantizer.dtype), torch.reciprocal(scale)


def _dequantize(
    values: torch.Tensor, inverse: torch.Tensor, square: bool, columnwise: bool, compact: bool
) -> torch.Tensor:
    """``values`` [rows as stored, columns as stored] times the scales in their stored layout."""
    if compact and columnwise:
        return blocks.multiply_blocks(values, inverse[:, : values.shape[1]], _BLOCK, 1)
    rows = _BLOCK if square else 1
    ordered = inverse if square or compact else inverse.t()
    height, width = -(-values.shape[0] // rows), -(-values.shape[1] // _BLOCK)
    return blocks.multiply_blocks(values, ordered[:height, :width], rows, _BLOCK)


def _store(buffers: storage.Buffers, name: str, scales: torch.Tensor) -> None:
    """Put scales into the padded buffer that ``empty`` made."""
    buffer = buffers[name]
    assert buffer is not None
    buffer[: scales.shape[0], : scales.shape[1]] = scales


def _is_square(quantizer: Any) -> bool:
    return quantizer.block_scaling_dim == 2


def is_compact(quantizer: Any) -> bool:
    """Whether scales and columnwise data keep the layout of the input, which a later all-gather wants (2.9 only)."""
    return settings.current().facts.block_format_is_chosen and bool(quantizer.all_gather_usage)


def _tensor_is_compact(tensor: Any) -> bool:
    return settings.current().facts.block_format_is_chosen and tensor._data_format.name == "COMPACT"


def _keeps_order(quantizer: Any) -> bool:
    """1D scales are stored transposed, as cuBLAS reads them, unless the layout is compact."""
    return _is_square(quantizer) or is_compact(quantizer)


def _rowwise_scale_shape(quantizer: Any, rows: int, columns: int) -> tuple[int, int]:
    wide = -(-columns // _BLOCK)
    if _is_square(quantizer):
        return -(-rows // _BLOCK), blocks.round_up(wide, 4)
    return (rows, wide) if is_compact(quantizer) else (wide, blocks.round_up(rows, 4))


def _columnwise_scale_shape(quantizer: Any, rows: int, columns: int) -> tuple[int, int]:
    high = -(-rows // _BLOCK)
    if _is_square(quantizer):
        return -(-columns // _BLOCK), blocks.round_up(high, 4)
    return high, columns if is_compact(quantizer) else blocks.round_up(columns, 4)
