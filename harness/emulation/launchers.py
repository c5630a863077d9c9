"""Replacements for functions of TE that launch kernels written in Triton or load compiled libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def load_framework_extension(framework: str) -> None:
    """Of ``transformer_engine.common``: torch's extension is in place already, JAX's does not exist."""
    if framework != "torch":
        raise ImportError(f"the CPU emulation has no Transformer Engine extension for {framework}")


def launch_grouped_dbias(
    dy: torch.Tensor,
    offsets: torch.Tensor,
    dbias: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    dscales: torch.Tensor | None,
) -> None:
    """Of ``pytorch/triton/grouped_dbias_dscales.py``: per-group sums of (scaled) rows of ``dy``, added to ``dbias``.

    Row i belongs to the group whose range of ``offsets`` [groups + 1] holds i; ``dscales`` receives the products of
    the rows with their group's bias.
    """
    rows = torch.arange(dy.shape[0])
    group = torch.bucketize(rows, offsets[1:], right=True)
    wide = dy.float()
    dbias.index_add_(0, group, wide if scales is None else wide * scales.view(-1, 1))
    if dscales is not None and bias is not None:
        dscales += (wide * bias.float()[group]).sum(1)


REPLACEMENTS: dict[str, dict[str, Callable[..., Any]]] = {
    "transformer_engine.common": {"load_framework_extension": load_framework_extension},
    "transformer_engine.pytorch.triton.grouped_dbias_dscales": {"_launch_grouped_dbias": launch_grouped_dbias},
}
"""Module to name to function; put in place when the module has been imported."""
