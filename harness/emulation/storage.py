"""Builds and updates TE's quantized tensor objects; the only place that knows their constructors.

Buffers are named by the attributes of TE's storage classes (``_data``, ``_rowwise_scale_inv``, ...).
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

import torch

from harness.emulation import raw, settings
from harness.emulation.guard import EXTENSION

Buffers = dict[str, "torch.Tensor | None"]

_TENSOR_PACKAGE = "transformer_engine.pytorch.tensor"

_KEYWORDS = {"_scale_inv": "fp8_scale_inv", "_transpose": "data_transpose"}
"""Constructor keywords that are not the attribute's name without its underscore."""

BLOCK_BUFFERS = ("_rowwise_data", "_rowwise_scale_inv", "_columnwise_data", "_columnwise_scale_inv")
NVFP4_BUFFERS = (*BLOCK_BUFFERS, "_amax_rowwise", "_amax_columnwise")
_BUFFERS = {
    "Float8TensorStorage": ("_data", "_transpose", "_scale_inv"),
    "MXFP8TensorStorage": BLOCK_BUFFERS,
    "Float8BlockwiseQTensorStorage": BLOCK_BUFFERS,
    "NVFP4TensorStorage": NVFP4_BUFFERS,
}
"""By the storage class, which every tensor class derives from."""

_MODULE_AND_CLASS = {
    "Float8Quantizer": ("float8_tensor", "Float8Tensor"),
    "Float8CurrentScalingQuantizer": ("float8_tensor", "Float8Tensor"),
    "MXFP8Quantizer": ("mxfp8_tensor", "MXFP8Tensor"),
    "Float8BlockQuantizer": ("float8_blockwise_tensor", "Float8BlockwiseQTensor"),
    "NVFP4Quantizer": ("nvfp4_tensor", "NVFP4Tensor"),
}


def construct(quantizer: Any, shape: torch.Size, dtype: torch.dtype, buffers: Buffers) -> Any:
    """A new tensor (or bare storage, for ``internal`` quantizers) that owns ``buffers``."""
    keywords: dict[str, Any] = {_KEYWORDS.get(name, name[1:]): buffer for name, buffer in buffers.items()}
    keywords["quantizer"] = quantizer
    keywords.update(_format(quantizer, shape))
    internal = bool(quantizer.internal)
    if not internal:
        keywords.update(shape=shape, dtype=dtype)
        if settings.current().facts.tensors_take_device:
            keywords["device"] = _device(buffers)
    elif settings.current().facts.tensors_take_device:
        keywords["fake_dtype"] = dtype
    return _tensor_class(quantizer, internal)(**keywords)


def update(tensor: Any, quantizer: Any, shape: torch.Size, buffers: Buffers) -> None:
    """Write ``buffers`` into an existing tensor; allocate what it lacks and drop what the quantizer does not use."""
    for name, value in buffers.items():
        present = getattr(tensor, name)
        if present is None or value is None:
            setattr(tensor, name, value)
        elif present.shape != value.shape:
            raise RuntimeError(
                f"{type(tensor).__name__}.{name} has shape {tuple(present.shape)}, expected {tuple(value.shape)}"
            )
        else:
            raw.write(present, value)
    _mark_format(tensor, quantizer, shape)


def coerce(tensor: Any, quantizer: Any, shape: torch.Size, empty: Buffers) -> None:
    """Give a tensor the buffers that its quantizer wants without touching contents that exist."""
    for name, value in empty.items():
        if value is None or getattr(tensor, name) is None:
            setattr(tensor, name, value)
    _mark_format(tensor, quantizer, shape)


def buffers_of(tensor: Any) -> Buffers:
    """The buffers that a tensor holds, by attribute."""
    names = next(_BUFFERS[base.__name__] for base in type(tensor).__mro__ if base.__name__ in _BUFFERS)
    return {name: getattr(tensor, name) for name in names}


def swizzles(quantizer: Any, shape: torch.Size) -> bool:
    """Whether scales are stored in the order that a product reads, rather than in their natural one."""
    if not settings.current().facts.scales_can_be_swizzled or not quantizer.optimize_for_gemm:
        return False
    if type(quantizer).__name__ == "MXFP8Quantizer":
        return True
    return type(quantizer).__name__ == "NVFP4Quantizer" and _nvfp4_swizzles(quantizer, shape)


def _nvfp4_swizzles(quantizer: Any, shape: torch.Size) -> bool:
    """Only some kernels write that order themselves (quantizer.cpp, ``nvfp4_emits_gemm_swizzled_scales``)."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if not (10, 0) <= settings.current().compute_capability <= (11, 0) or columns % 128:
        return False
    if quantizer.with_rht:
        return rows % 64 == 0
    plain = not quantizer.row_scaled_nvfp4 and not quantizer.nvfp4_use_4over6
    return quantizer.with_2d_quantization and plain and rows % 128 == 0


def _mark_format(tensor: Any, quantizer: Any, shape: torch.Size) -> None:
    """Set the attributes that describe the buffers of an existing tensor."""
    if hasattr(tensor, "_transpose"):
        tensor._transpose_invalid = tensor._transpose is None
    for name, value in _format(quantizer, shape).items():
        setattr(tensor, f"_{name}", value)


def _format(quantizer: Any, shape: torch.Size) -> dict[str, Any]:
    """What a tensor says about its buffers, by constructor keyword."""
    facts = settings.current().facts
    kind = type(quantizer).__name__
    described = {"fp4_dtype" if kind == "NVFP4Quantizer" else "fp8_dtype": quantizer.dtype}
    if kind == "Float8BlockQuantizer":
        described["is_2D_scaled"] = quantizer.block_scaling_dim == 2
        if facts.block_format_is_chosen:
            formats = sys.modules[EXTENSION].Float8BlockScaleTensorFormat
            described["data_format"] = formats.COMPACT if quantizer.all_gather_usage else formats.GEMM_READY
    if kind in ("MXFP8Quantizer", "NVFP4Quantizer") and facts.scales_can_be_swizzled:
        described["with_gemm_swizzled_scales"] = swizzles(quantizer, shape)
    if kind == "NVFP4Quantizer" and facts.nvfp4_has_variants:
        for name in ("row_scaled_nvfp4", "nvfp4_use_4over6", "nvfp4_e4m3_max"):
            described[name] = getattr(quantizer, name)
    return described


def _device(buffers: Buffers) -> torch.device:
    return next(buffer.device for buffer in buffers.values() if buffer is not None)


_classes: dict[tuple[type[Any], bool], Any] = {}


def _tensor_class(quantizer: Any, internal: bool) -> Any:
    """The class of the tensors that a quantizer makes; found once, TE is imported when the first one is made."""
    key = type(quantizer), internal
    if key not in _classes:
        module, name = _MODULE_AND_CLASS[type(quantizer).__name__]
        path = f"{_TENSOR_PACKAGE}.storage.{module}_storage" if internal else f"{_TENSOR_PACKAGE}.{module}"
        _classes[key] = getattr(import_module(path), f"{name}Storage" if internal else name)
    return _classes[key]
