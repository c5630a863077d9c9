"""Tensors cut into rectangular blocks with one number per block. All functions take matrices.

The last row and column of blocks may be partial.
"""

from __future__ import annotations

import torch


def block_amax(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Largest magnitude of each block, fp32 [ceil(R / rows), ceil(C / columns)]; NaN elements are ignored."""
    largest = _blocks(matrix.abs(), rows, columns).amax(dim=(1, 3)).float()
    if torch.isnan(largest).any():
        magnitudes = matrix.abs().nan_to_num(nan=0.0, posinf=torch.inf)
        largest = _blocks(magnitudes, rows, columns).amax(dim=(1, 3)).float()
    return largest


def multiply_blocks(matrix: torch.Tensor, factors: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """fp32 ``matrix`` with every block multiplied by its factor."""
    products = _blocks(matrix.float(), rows, columns) * factors[:, None, :, None]
    height, width = matrix.shape
    padded = products.reshape(factors.shape[0] * rows, factors.shape[1] * columns)
    return padded[:height, :width].contiguous()


def spread(values: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    """One value per element from one per block, cut to ``shape``."""
    full = values[:, None, :, None].expand(-1, rows, -1, columns)
    return full.reshape(values.shape[0] * rows, values.shape[1] * columns)[: shape[0], : shape[1]]


def padded(matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """``matrix`` extended with zeros to the given size."""
    return torch.nn.functional.pad(matrix, (0, width - matrix.shape[1], 0, height - matrix.shape[0]))


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def _blocks(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """View as [row of blocks, row in block, column of blocks, column in block]; pads with zeros where needed."""
    height, width = round_up(matrix.shape[0], rows), round_up(matrix.shape[1], columns)
    if matrix.shape != (height, width):
        matrix = padded(matrix, height, width)
    return matrix.reshape(height // rows, rows, width // columns, columns)
