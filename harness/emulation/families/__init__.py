"""One module per kind of quantized tensor: how values become the buffers of a TE tensor and back.

A family joins pure number formats (``harness.emulation.formats``) with TE's tensor classes (``storage``).
"""

from __future__ import annotations

from typing import Any

from harness.emulation.families.base import Family, Operand
from harness.emulation.families.float8 import CurrentScaling, DelayedScaling

__all__ = ["Family", "Operand", "is_quantized", "of_quantizer", "of_tensor"]

_BY_QUANTIZER: dict[str, Family] = {
    "Float8Quantizer": DelayedScaling(),
    "Float8CurrentScalingQuantizer": CurrentScaling(),
}
_BY_TENSOR: dict[str, Family] = {
    "Float8Tensor": _BY_QUANTIZER["Float8Quantizer"],
    "Float8TensorStorage": _BY_QUANTIZER["Float8Quantizer"],
}


def of_quantizer(quantizer: Any) -> Family:
    """The family of a TE quantizer; like the extension, by its exact class.

    Raises:
        NotImplementedError: a quantizer class that the extension does not know.
    """
    family = _BY_QUANTIZER.get(type(quantizer).__name__)
    if family is None:
        raise NotImplementedError(f"quantizer of type {type(quantizer).__name__} is not covered by the CPU emulation")
    return family


def of_tensor(tensor: Any) -> Family:
    """The family of a quantized TE tensor or storage.

    Raises:
        NotImplementedError: a tensor class that the extension does not know.
    """
    family = _BY_TENSOR.get(type(tensor).__name__)
    if family is None:
        raise NotImplementedError(f"tensor of type {type(tensor).__name__} is not covered by the CPU emulation")
    return family


def is_quantized(tensor: Any) -> bool:
    """Whether the object is one of TE's quantized tensors or storages."""
    return type(tensor).__name__ in _BY_TENSOR
