"""The order in which cuBLAS wants the scales of MXFP8 and NVFP4: tiles of 128 x 4, see common/swizzle/swizzle.cu."""

from __future__ import annotations

import torch

_ROWS, _COLUMNS, _STRIPES = 128, 4, 4


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """[R, C] scales (R a multiple of 128, C of 4) in GEMM order, same shape.

    Tiles follow each other row by row; in a tile, row ``r`` and column ``c`` are stored at
    ``(r % 32) * 16 + (r // 32) * 4 + c``.
    """
    rows, columns = scales.shape
    tiles = scales.reshape(rows // _ROWS, _STRIPES, _ROWS // _STRIPES, columns // _COLUMNS, _COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)


def unswizzle(scales: torch.Tensor) -> torch.Tensor:
    """The inverse of ``swizzle``."""
    rows, columns = scales.shape
    tiles = scales.reshape(rows // _ROWS, columns // _COLUMNS, _ROWS // _STRIPES, _STRIPES, _COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)
