"""Choosing some strategies more often than others."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def weighted(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """One of the strategies, drawn in proportion to its weight. Shrinks to the first, as ``one_of`` does.

    ``a | a | b`` would draw both alike: Hypothesis passes over a strategy that it has seen. A ``one_of`` of several
    branches with weight 1 counts as many times as it has branches.
    """
    return st.one_of([_copy(strategy) if copy else strategy for weight, strategy in choices for copy in range(weight)])


def _copy(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """The same values and choices in another object."""
    return st.just(strategy).flatmap(lambda same: same)
