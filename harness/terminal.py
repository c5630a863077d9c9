"""Failures of fuzz tests on the terminal: the essence of each finding in the place of tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def shorten(report: Any, error: BaseException) -> None:
    """Let a pytest report show the essence of the findings that ``error`` is made of, if it is of nothing else."""
    texts = list(_essences(error))
    if texts and None not in texts:
        report.longrepr = "\n\n".join([*map(str, texts), "(pytest -v shows the whole tracebacks)"])


def _essences(error: BaseException) -> Iterator[str | None]:
    """The essence of a finding, or of all in a group; None for an exception that is no finding."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _essences(inner)
    else:
        yield getattr(error, "essence", None)
