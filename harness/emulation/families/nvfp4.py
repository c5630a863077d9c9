"""NVFP4 tensors: FP4 values, an E4M3 scale per 16 of them, one fp32 amax per tensor and direction.

Sources: pytorch/csrc/quantizer.cpp; common/gemm/cublaslt_gemm.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import settings, storage
from harness.emulation.families.base import Family, Operand, flat, matrix_size
from harness.emulation.formats import blocks, fp4, fp8, nvfp4, swizzle


class NVFP4(Family):
    """Columnwise data is the transposed matrix, quantized for itself, after a Hadamard transform if asked for."""

    kind = "NVFP4"
    is_fp8 = False
    takes_amax = True

    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        mode = _mode(quantizer)
        _check_modes(quantizer, dtype)
        buffers = self.empty(quantizer, values.shape, values.device)
        matrix = flat(values)
        swizzled = storage.swizzles(quantizer, values.shape)
        if quantizer.with_rht:
            amax = None  # a transform takes its own; the direct copy has that of the input
        for name, used in (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage)):
            if not used:
                continue
            source = matrix
            if name == "columnwise":
                source = matrix.t().contiguous()
                if quantizer.with_rht:
                    source = nvfp4.hadamard(source, quantizer.rht_matrix)
            largest = _amax(quantizer, source, amax)
            by_row = largest.unsqueeze(1) if _is_row_scaled(quantizer) else largest
            codes, scales = nvfp4.quantize(source, by_row, mode)
            data = fp4.pack(codes)
            buffers[f"_{name}_data"] = data.view(_packed(values.shape)) if name == "rowwise" else data
            buffers[f"_{name}_scale_inv"] = _stored(scales, swizzled)
            buffers[f"_amax_{name}"] = largest
        return buffers

    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        rows, columns = _checked_size(shape)
        buffers: storage.Buffers = dict.fromkeys(storage.NVFP4_BUFFERS)
        row_scaled = _is_row_scaled(quantizer)
        if quantizer.rowwise_usage:
            buffers["_rowwise_data"] = torch.empty(_packed(shape), dtype=torch.uint8, device=device)
            buffers["_rowwise_scale_inv"] = _empty_scales(rows, columns, device)
            buffers["_amax_rowwise"] = torch.zeros(rows if row_scaled else 1, device=device)
        if quantizer.columnwise_usage:
            buffers["_columnwise_data"] = torch.empty((columns, rows // 2), dtype=torch.uint8, device=device)
            buffers["_columnwise_scale_inv"] = _empty_scales(columns, rows, device)
            buffers["_amax_columnwise"] = torch.zeros(columns if row_scaled else 1, device=device)
        return buffers

    def decode(self, tensor: Any) -> torch.Tensor:
        if tensor._rowwise_data is None:
            raise NotImplementedError("Dequantizing NVFP4 tensors that hold only column-wise data")
        codes, scales = _codes_and_scales(tensor, columnwise=False)
        amax = tensor._amax_rowwise
        values = nvfp4.dequantize(codes, scales, amax.view(-1, 1) if amax.numel() > 1 else amax, _e4m3_max(tensor))
        return values.view(self.shape(tensor))

    def operand(self, tensor: Any, columnwise: bool) -> Operand:
        if (tensor._columnwise_data if columnwise else tensor._rowwise_data) is None:
            raise RuntimeError(f"Input is missing {'column' if columnwise else 'row'}-wise usage")
        codes, scales = _codes_and_scales(tensor, columnwise)
        matrix = nvfp4.block_values(codes, scales)
        amax = tensor._amax_columnwise if columnwise else tensor._amax_rowwise
        if amax.numel() > 1:
            matrix, amax = matrix * amax.view(-1, 1), torch.ones(1)
        divisor = fp4.FP4_MAX * _e4m3_max(tensor)
        return Operand(matrix.t() if columnwise else matrix, amax.reshape(()), self.kind, divisor)

    def shape(self, tensor: Any) -> torch.Size:
        if tensor._rowwise_data is not None:
            packed = tensor._rowwise_data.shape
            return torch.Size([*packed[:-1], packed[-1] * 2])
        columns, half = tensor._columnwise_data.shape
        return torch.Size([half * 2, columns])

    def takes_amax_of(self, quantizer: Any) -> bool:
        return not (quantizer.with_rht and quantizer.with_post_rht_amax) and not _is_row_scaled(quantizer)


def _mode(quantizer: Any) -> nvfp4.Mode:
    four_over_six = getattr(quantizer, "nvfp4_use_4over6", False)
    return nvfp4.Mode(
        folds_sixth=settings.current().facts.nvfp4_folds_sixth,
        square=quantizer.with_2d_quantization,
        stochastic=quantizer.stochastic_rounding,
        e4m3_max=_e4m3_max(quantizer),
        four_over_six=quantizer.nvfp4_4over6_err_mode if four_over_six else None,
    )


def _check_modes(quantizer: Any, dtype: torch.dtype) -> None:
    if quantizer.with_rht:
        if dtype != torch.bfloat16:
            raise RuntimeError(f"RHT is only supported for bfloat16 input, got {dtype}")
        if not quantizer.with_post_rht_amax:
            raise RuntimeError("Pre-RHT amax is not supported yet. Use with_post_rht_amax=true instead.")
    for name, what in (("nvfp4_use_4over6", "4over6"), ("row_scaled_nvfp4", "row-scaled")):
        if getattr(quantizer, name, False):
            if quantizer.with_rht:
                raise RuntimeError(f"NVFP4 {what} quantization does not support RHT.")
            if quantizer.stochastic_rounding:
                raise RuntimeError(f"NVFP4 {what} quantization does not support stochastic rounding.")


def _amax(quantizer: Any, source: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    if _is_row_scaled(quantizer):
        return blocks.block_amax(source, 1, source.shape[1]).flatten()
    largest = fp8.amax(source) if given is None else given.clone()
    if quantizer.with_amax_reduction:
        group = quantizer._canonicalized_amax_reduction_group()
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return largest


def _is_row_scaled(quantizer: Any) -> bool:
    return bool(getattr(quantizer, "row_scaled_nvfp4", False))


def _e4m3_max(holder: Any) -> float:
    """Of a quantizer or of a tensor; releases without the option use the whole range."""
    return float(getattr(holder, "nvfp4_e4m3_max", None) or getattr(holder, "_nvfp4_e4m3_max", None) or 448.0)


def _codes_and_scales(tensor: Any, columnwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data = tensor._columnwise_data if columnwise else tensor._rowwise_data
    scales = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
    codes = fp4.unpack(flat(data))
    if getattr(tensor, "_with_gemm_swizzled_scales", False):
        scales = swizzle.unswizzle(scales)
    return codes, scales[: codes.shape[0], : codes.shape[1] // nvfp4.BLOCK].contiguous()


def _packed(shape: torch.Size) -> torch.Size:
    return torch.Size([*shape[:-1], shape[-1] // 2])


def _checked_size(shape: torch.Size) -> tuple[int, int]:
    rows, columns = matrix_size(shape)
    if rows % nvfp4.BLOCK:
        raise RuntimeError(f"First dim for NVFP4 must be divisible by {nvfp4.BLOCK} (got shape={tuple(shape)})")
    if columns % nvfp4.BLOCK:
        raise RuntimeError(f"NVFP4 requires tensor dims that are divisible by {nvfp4.BLOCK} (got shape={tuple(shape)})")
    return rows, columns


def _scale_size(rows: int, columns: int) -> tuple[int, int]:
    return blocks.round_up(rows, 128), blocks.round_up(columns // nvfp4.BLOCK, 4)


def _empty_scales(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(_scale_size(rows, columns), dtype=torch.uint8, device=device)


def _stored(scales: torch.Tensor, swizzled: bool) -> torch.Tensor:
    full = blocks.padded(scales, *_scale_size(scales.shape[0], scales.shape[1] * nvfp4.BLOCK))
    return swizzle.swizzle(full) if swizzled else full
