"""Per-tensor FP8: one scale for a whole tensor. Delayed scaling takes it from history, current scaling computes it.

Sources: pytorch/csrc/quantizer.cpp; common/util/cast_kernels.cuh; common/recipe/current_scaling.cu.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from harness.emulation import raw, settings, storage
from harness.emulation.dtypes import FP8_MAX
from harness.emulation.families.base import Family, Operand
from harness.emulation.formats import fp8


class _PerTensor(Family):
    """What delayed and current scaling share: the tensor class and its buffers."""

    kind = "per-tensor FP8"

    def decode(self, tensor: Any) -> torch.Tensor:
        if tensor._data is None:
            raise NotImplementedError("dequantizing an FP8 tensor that holds only its transpose")
        return fp8.decode(tensor._data, tensor._fp8_dtype) * tensor._scale_inv.reshape(())

    def operand(self, tensor: Any, columnwise: bool) -> Operand:
        return Operand(self._matrix(tensor, columnwise), tensor._scale_inv.reshape(()), self.kind)

    def shape(self, tensor: Any) -> torch.Size:
        if tensor._data is not None:
            return tensor._data.shape
        transposed = tensor._transpose.shape
        return torch.Size([*transposed[1:], transposed[0]])

    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        with_data, with_transpose = _usages(quantizer)
        transposed = torch.Size([shape[-1], *shape[:-1]])
        return {
            "_data": torch.empty(shape, dtype=torch.uint8, device=device) if with_data else None,
            "_transpose": torch.empty(transposed, dtype=torch.uint8, device=device) if with_transpose else None,
            "_scale_inv": torch.ones(1, dtype=torch.float32, device=device),
        }

    @staticmethod
    def _matrix(tensor: Any, columnwise: bool) -> torch.Tensor:
        transposed = tensor._transpose if not tensor._transpose_invalid else None
        needs_transpose = columnwise and settings.current().fp8_needs_transpose
        data = tensor._data
        if not needs_transpose and data is not None:
            return fp8.decode(data, tensor._fp8_dtype).reshape(-1, data.shape[-1])
        if transposed is None:
            usage = "column-wise" if columnwise else "row-wise"
            raise RuntimeError(f"GEMM operand is missing {usage} usage")
        if not needs_transpose and not settings.current().facts.gemm_reads_either_fp8_copy:
            raise RuntimeError("GEMM operand is missing row-wise usage")
        return fp8.decode(transposed, tensor._fp8_dtype).reshape(transposed.shape[0], -1).t()

    @staticmethod
    def _buffers(quantizer: Any, values: torch.Tensor, scale: torch.Tensor, has_nan: bool) -> storage.Buffers:
        """Buffers of ``values`` cast with ``scale`` (fp32[1])."""
        with_data, with_transpose = _usages(quantizer)
        factor = scale.item()
        # A product is NaN when a value is, when the scale is, or for an infinity times zero.
        may_have_nan = has_nan or not 0 < factor < math.inf
        codes = fp8.cast(values, factor, quantizer.dtype, may_have_nan)
        return {
            "_data": codes if with_data else None,
            "_transpose": transpose(codes) if with_transpose else None,
            "_scale_inv": torch.reciprocal(scale).view(1),
        }


class DelayedScaling(_PerTensor):
    """Scale from the quantizer; the quantizer's amax grows to cover what was seen."""

    takes_unrounded = True
    fuses_bias_grad = True

    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        largest, has_nan = fp8.extent(values)
        # The kernel's amax is an atomic maximum: several quantizations in one step accumulate.
        if largest > quantizer.amax.item():
            raw.write(quantizer.amax, torch.tensor(largest))
        return self._buffers(quantizer, values, quantizer.scale, has_nan)

    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        buffers = super().empty(quantizer, shape, device)
        buffers["_scale_inv"] = torch.reciprocal(quantizer.scale).reshape(1)
        return buffers


class CurrentScaling(_PerTensor):
    """Scale from the values themselves."""

    takes_amax = True

    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        has_nan = True
        if amax is None and getattr(quantizer, "use_existing_amax", False):
            amax = quantizer.amax
        elif amax is None:
            largest, has_nan = fp8.extent(values)
            amax = torch.tensor([largest], dtype=torch.float32)
        if quantizer.with_amax_reduction:
            amax = amax.clone()
            group = quantizer._canonicalized_amax_reduction_group()
            torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)
        scale = fp8.scale_from_amax(
            amax,
            FP8_MAX[int(quantizer.dtype)],
            force_pow_2=quantizer.force_pow_2_scales,
            epsilon=quantizer.amax_epsilon,
        )
        if settings.current().facts.current_scaling_keeps_buffers:
            raw.write(quantizer.amax, amax)
            raw.write(quantizer.scale, scale)
        return self._buffers(quantizer, values, scale, has_nan)


def transpose(codes: torch.Tensor) -> torch.Tensor:
    """``[..., K]`` to ``[K, ...]``, contiguous: the transposed copy of FP8 data."""
    if codes.dim() == 2:
        return codes.t().contiguous()
    if codes.dim() < 2:
        return codes.clone()
    flat = codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1])
    return flat.t().contiguous().view(codes.shape[-1], *codes.shape[:-1])


def _usages(quantizer: Any) -> tuple[bool, bool]:
    """Whether the tensor carries data and a transposed copy (quantizer.cpp, ``create_tensor``)."""
    needs_transpose = settings.current().fp8_needs_transpose
    return quantizer.rowwise_usage or not needs_transpose, quantizer.columnwise_usage and needs_transpose
