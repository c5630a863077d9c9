"""Rearranging the scales and the packed data of block-scaled tensors (releases after 2.9).

Sources: pytorch/csrc/extensions/swizzle.cpp and transpose.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import raw
from harness.emulation.formats import blocks, fp4, nvfp4, swizzle
from harness.emulation.kernels.registry import tex_function


@tex_function
def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """Put a tensor's scales into the order in which products read them; nothing if they are already."""
    if not hasattr(tensor, "_with_gemm_swizzled_scales") or tensor._with_gemm_swizzled_scales:
        return
    transposes = type(tensor).__name__.startswith("MXFP8")
    if tensor._rowwise_scale_inv is not None:
        tensor._rowwise_scale_inv = swizzle.swizzle(tensor._rowwise_scale_inv)
    columnwise = tensor._columnwise_scale_inv
    if columnwise is not None:
        ordered = swizzle.swizzle(columnwise.t() if transposes else columnwise)
        tensor._columnwise_scale_inv = ordered.reshape(columnwise.shape)
    tensor._with_gemm_swizzled_scales = True


@tex_function
def nvfp4_data_transpose(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Packed FP4 [M, K / 2] to packed [K, M / 2]."""
    transposed = fp4.pack(fp4.unpack(input).t().contiguous())
    if out is None:
        return transposed
    raw.write(out, transposed)
    return out


@tex_function
def nvfp4_2d_scale_transpose(input: torch.Tensor, output: torch.Tensor, M_tiles: int, K_tiles: int) -> None:
    """Scales of 16 x 16 blocks from rowwise [M, K / 16] to columnwise [K, M / 16] order; padding becomes zero."""
    tiles = input[: M_tiles * nvfp4.BLOCK : nvfp4.BLOCK, :K_tiles]
    expanded = tiles.t().repeat_interleave(nvfp4.BLOCK, dim=0)[: output.shape[0]]
    raw.write(output, blocks.padded(expanded, *output.shape))
