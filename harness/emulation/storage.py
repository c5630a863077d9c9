"""Builds and updates TE's quantized tensor objects; the only place that knows their constructors.

Buffers are named by the attributes of TE's storage classes (``_data``, ``_rowwise_scale_inv``, ...).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from harness.emulation import raw, settings

Buffers = dict[str, "torch.Tensor | None"]

_TENSOR_PACKAGE = "transformer_engine.pytorch.tensor"

_KEYWORDS = {"_scale_inv": "fp8_scale_inv", "_transpose": "data_transpose"}
"""Constructor keywords that are not the attribute's name without its underscore."""

_BLOCK_BUFFERS = ("_rowwise_data", "_rowwise_scale_inv", "_columnwise_data", "_columnwise_scale_inv")
_BUFFERS = {
    "Float8Tensor": ("_data", "_transpose", "_scale_inv"),
    "MXFP8Tensor": _BLOCK_BUFFERS,
    "Float8BlockwiseQTensor": _BLOCK_BUFFERS,
    "NVFP4Tensor": (*_BLOCK_BUFFERS, "_amax_rowwise", "_amax_columnwise"),
}

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
    keywords.update(_format_keywords(quantizer))
    internal = bool(quantizer.internal)
    if not internal:
        keywords.update(shape=shape, dtype=dtype)
        if settings.current().facts.tensors_take_device:
            keywords["device"] = _device(buffers)
    elif settings.current().facts.tensors_take_device:
        keywords["fake_dtype"] = dtype
    return _tensor_class(quantizer, internal)(**keywords)


def update(tensor: Any, quantizer: Any, buffers: Buffers) -> None:
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
    mark_format(tensor, quantizer)


def coerce(tensor: Any, quantizer: Any, empty: Buffers) -> None:
    """Give a tensor the buffers that its quantizer wants without touching contents that exist."""
    for name, value in empty.items():
        if value is None or getattr(tensor, name) is None:
            setattr(tensor, name, value)
    mark_format(tensor, quantizer)


def buffers_of(tensor: Any) -> Buffers:
    """The buffers that a tensor holds, by attribute."""
    names = _BUFFERS[type(tensor).__name__.removesuffix("Storage")]
    return {name: getattr(tensor, name) for name in names}


def mark_format(tensor: Any, quantizer: Any) -> None:
    """Set the attributes that describe the buffers."""
    if hasattr(tensor, "_transpose"):
        tensor._transpose_invalid = tensor._transpose is None
    if hasattr(tensor, "_fp8_dtype"):
        tensor._fp8_dtype = quantizer.dtype


def _format_keywords(quantizer: Any) -> dict[str, Any]:
    return {"fp8_dtype": quantizer.dtype}


def _device(buffers: Buffers) -> torch.device:
    return next(buffer.device for buffer in buffers.values() if buffer is not None)


def _tensor_class(quantizer: Any, internal: bool) -> Any:
    module, name = _MODULE_AND_CLASS[type(quantizer).__name__]
    if internal:
        return getattr(import_module(f"{_TENSOR_PACKAGE}.storage.{module}_storage"), f"{name}Storage")
    return getattr(import_module(f"{_TENSOR_PACKAGE}.{module}"), name)
