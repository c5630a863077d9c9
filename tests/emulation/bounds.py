"""Error bounds that follow from the arithmetic: unit roundoff, number of roundings, size of the summands."""

from __future__ import annotations

import torch

ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half the distance between neighbours, relative, of each dtype."""

SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
"""Smallest positive value of each dtype: results below the normal range are rounded absolutely."""


def after_rounding(
    exact: torch.Tensor, roundings: int, dtype: torch.dtype, magnitude: torch.Tensor | None = None
) -> torch.Tensor:
    """Largest error of a value that fp32 arithmetic computed with ``roundings`` roundings and then stored in ``dtype``.

    Args:
        exact: the float64 result.
        magnitude: float64 sum of the magnitudes of the terms; that of the result itself where nothing cancels.
    """
    unit = ROUNDOFF[torch.float32]
    gamma = roundings * unit / (1 - roundings * unit)
    computed = gamma * (exact.abs() if magnitude is None else magnitude)
    return computed + ROUNDOFF[dtype] * (exact.abs() + computed) + SMALLEST[dtype]


def assert_within(actual: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    """Every element of ``actual`` is finite and within ``bound`` of ``exact``."""
    assert actual.shape == exact.shape
    error = (actual.double() - exact).abs()
    excess = (error - bound).max().item()
    assert torch.isfinite(actual).all()
    assert excess <= 0, f"error exceeds its bound by {excess:.3e} (largest error {error.max().item():.3e})"
