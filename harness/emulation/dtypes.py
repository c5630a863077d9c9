"""TE's element types and torch's."""

from __future__ import annotations

import torch

from harness.emulation.enums import DType

TORCH_DTYPE: dict[int, torch.dtype] = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}

FP8_MAX: dict[int, float] = {DType.kFloat8E4M3: 448.0, DType.kFloat8E5M2: 57344.0}
"""Largest finite value of each FP8 format."""


def torch_dtype(te_dtype: int) -> torch.dtype:
    """The torch dtype of a TE element type.

    Raises:
        KeyError: a type that torch cannot hold (FP4 is stored in packed bytes).
    """
    return TORCH_DTYPE[int(te_dtype)]
