"""Fused dropout. The random stream differs from the GPU's; rate, scale and mask layout are the same.

Source: common/dropout/dropout.cu.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from harness.emulation import families, raw
from harness.emulation.kernels.registry import tex_function

_BIT = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)


@tex_function
def dropout_fwd(
    input: Any,
    dropout_probability: float,
    out: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """``[output, mask]``; the mask holds one keep flag per bit, uint8[numel / 8].

    An element is dropped when a random byte is below ``floor(256 p)``; the rest is scaled by ``1 / (1 - p)``.
    """
    values = families.of_tensor(input).decode(input) if families.is_quantized(input) else input
    threshold = math.floor(256 * dropout_probability)
    keep = torch.randint(0, 256, values.shape, dtype=torch.int16) >= threshold
    mask = (keep.view(-1, 8).to(torch.uint8) * _BIT).sum(1, dtype=torch.uint8)
    result = _scaled(values, keep, dropout_probability, input.dtype)
    if out is None:
        return [result, mask]
    raw.write(out, result)
    return [out, mask]


@tex_function
def dropout_bwd(
    grad_output: torch.Tensor,
    mask: torch.Tensor,
    dropout_probability: float,
    grad_input: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of ``dropout_fwd``."""
    keep = (mask.view(-1, 1) & _BIT).ne(0).view(grad_output.shape)
    result = _scaled(grad_output, keep, dropout_probability, grad_output.dtype)
    if grad_input is None:
        return result
    raw.write(grad_input, result)
    return grad_input


def _scaled(values: torch.Tensor, keep: torch.Tensor, probability: float, dtype: torch.dtype) -> torch.Tensor:
    scale = 1.0 / (1.0 - probability)
    return torch.where(keep, values.float() * scale, 0.0).to(dtype)
