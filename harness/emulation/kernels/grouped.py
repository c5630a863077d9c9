"""What grouped modules need: products of lists, padding of row groups.

Sources: pytorch/csrc/extensions/gemm.cpp and padding.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.emulation import raw
from harness.emulation.kernels.gemm import generic_gemm
from harness.emulation.kernels.registry import tex_function


@tex_function
def te_general_grouped_gemm(
    A: Sequence[Any],
    transa: bool,
    B: Sequence[Any],
    transb: bool,
    D: Sequence[torch.Tensor] | None,
    D_type: int,
    m_splits: Sequence[int],
    bias: Sequence[torch.Tensor],
    bias_type: int,
    single_output: bool,
    pre_gelu_out: Sequence[torch.Tensor],
    grad: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Sequence[torch.Tensor]:
    """One product per pair; results go into ``D`` (one tensor of stacked rows when ``single_output``).

    ``bias`` is added, or receives the bias gradients when ``grad``; ``pre_gelu_out`` asks for GELU by being non-empty.
    """
    if D is None:
        raise NotImplementedError("grouped GEMM without output tensors is not covered by the CPU emulation")
    first_row = 0
    for index, (a, b) in enumerate(zip(A, B, strict=True)):
        gelu_buffer = pre_gelu_out[index]
        with_gelu = gelu_buffer.numel() > 0
        target = None if single_output else D[index]
        if single_output and accumulate:
            raise NotImplementedError("accumulating grouped GEMM into one output is not covered by the CPU emulation")
        result, bias_grad, gelu_input, _ = generic_gemm(
            a,
            transa,
            b,
            transb,
            target,
            None,
            D_type,
            bias[index] if bias[index].numel() else None,
            bias_type,
            with_gelu,
            gelu_buffer if with_gelu and grad else None,
            grad,
            None,
            workspace_size,
            accumulate,
            use_split_accumulator,
        )
        if single_output:
            rows = result.reshape(-1, result.shape[-1])
            raw.write(D[0].view(-1, rows.shape[1])[first_row : first_row + rows.shape[0]], rows)
            first_row += rows.shape[0]
        if bias_grad is not None:
            raw.write(bias[index], bias_grad)
        if gelu_input is not None:
            raw.write(gelu_buffer, gelu_input.view(gelu_buffer.shape))
    return bias


@tex_function
def fused_multi_row_padding(
    input: torch.Tensor, output: torch.Tensor, input_row_list: Sequence[int], padded_input_row_list: Sequence[int]
) -> None:
    """Copy groups of rows to groups of at least as many; the rest is zero."""
    _copy_groups(input, output, input_row_list, padded_input_row_list)


@tex_function
def fused_multi_row_unpadding(
    input: torch.Tensor, output: torch.Tensor, input_row_list: Sequence[int], unpadded_input_row_list: Sequence[int]
) -> None:
    """The inverse of ``fused_multi_row_padding``."""
    _copy_groups(input, output, input_row_list, unpadded_input_row_list)


def _copy_groups(
    source: torch.Tensor, target: torch.Tensor, source_rows: Sequence[int], target_rows: Sequence[int]
) -> None:
    if len(source_rows) != len(target_rows):
        raise RuntimeError("Number of input row list and padded row list must match.")
    read, written = 0, 0
    for have, want in zip(source_rows, target_rows, strict=True):
        if have:
            block = torch.zeros(want, source.shape[1], dtype=source.dtype)
            kept = min(have, want)
            block[:kept] = source[read : read + kept]
            raw.write(target[written : written + want], block)
        read += have
        written += want
