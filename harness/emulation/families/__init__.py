"""One module per kind of quantized tensor: how values become the buffers of a TE tensor and back.

A family joins pure number formats (``harness.emulation.formats``) with TE's tensor classes (``storage``).
"""

from __future__ import annotations

from typing import Any

from harness.emulation.families.base import Family, Operand
from harness.emulation.families.block import BlockScaling
from harness.emulation.families.float8 import CurrentScaling, DelayedScaling
from harness.emulation.families.mxfp8 import MXFP8
from harness.emulation.families.nvfp4 import NVFP4

__all__ = ["Family", "Operand", "is_quantized", "of_quantizer", "of_tensor"]

_BY_QUANTIZER: dict[str, Family] = {
    "Float8Quantizer": DelayedScaling(),
    "Float8CurrentScalingQuantizer": CurrentScaling(),
    "Float8BlockQuantizer": BlockScaling(),
    "MXFP8Quantizer": MXFP8(),
    "NVFP4Quantizer": NVFP4(),
}
_BY_TENSOR: dict[str, Family] = {
    f"{name}{suffix}": _BY_QUANTIZER[quantizer]
    for name, quantizer in {
        "Float8Tensor": "Float8Quantizer",
        "Float8BlockwiseQTensor": "Float8BlockQuantizer",
        "MXFP8Tensor": "MXFP8Quantizer",
        "NVFP4Tensor": "NVFP4Quantizer",
    }.items()
    for suffix in ("", "Storage")
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
    family = _family_of_class(type(tensor))
    if family is None:
        raise NotImplementedError(f"tensor of type {type(tensor).__name__} is not covered by the CPU emulation")
    return family


def is_quantized(tensor: Any) -> bool:
    """Whether the object is one of TE's quantized tensors or storages, or of a class derived from one."""
    return _family_of_class(type(tensor)) is not None


_family_of: dict[type[Any], Family | None] = {}


def _family_of_class(cls: type[Any]) -> Family | None:
    if cls not in _family_of:
        _family_of[cls] = next((_BY_TENSOR[base.__name__] for base in cls.__mro__ if base.__name__ in _BY_TENSOR), None)
    return _family_of[cls]
