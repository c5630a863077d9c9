"""TE's process-wide FP8 state: reset it, or give one user of TE a copy of its own.

``FP8GlobalStateManager`` registers every module that ran under delayed scaling and, when any autocast region ends,
updates the scales of all of them. Two models in one process therefore change each other's scales.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformer_engine.pytorch.quantization import FP8GlobalStateManager


def reset() -> None:
    """Forget everything, as in a new process."""
    FP8GlobalStateManager.reset()


class OwnFp8Globals:
    """The FP8 globals of one user of TE: empty at first, kept between the times that ``active()`` is entered."""

    def __init__(self) -> None:
        self._values: dict[str, Any] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let TE see these globals instead of the process-wide ones."""
        outside = _read()
        if self._values is None:
            reset()
            _write({name: copy.copy(value) for name, value in _read().items()})
        else:
            _write(self._values)
        try:
            yield
        finally:
            self._values = _read()
            _write(outside)


def _read() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(FP8GlobalStateManager).items()
        if not name.startswith("__") and not isinstance(value, classmethod | staticmethod)
    }


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(FP8GlobalStateManager, name, value)
