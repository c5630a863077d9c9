"""What the fixes have in common. Imports no torch, Thunder or TE: listing the fixes must stay cheap."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

Revert = Callable[[], AbstractContextManager[None]]
"""Makes a context in which a fix is absent; ``FixError`` where the source that it patches is not as expected."""


class FixError(RuntimeError):
    """A revert cannot be applied, or a name is unknown; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix in Thunder or TE that can be asked for and undone.

    ``module`` holds ``is_present() -> bool`` and ``REVERTS: Mapping[str, Revert]``; it is imported when first asked.
    It needs ``harness.device.activate()`` to have run.
    """

    name: str
    title: str
    symptom: str
    project: str
    number: int
    first_release: str
    module: str
    reverts: tuple[str, ...]
    """Names of the ways to undo the fix; the first one is of record."""

    def is_present(self) -> bool:
        """Whether the installed packages have the fix, found out by making them do what it changed."""
        with warnings.catch_warnings():
            # Thunder and TE warn about torch and each other; the answer must not change where warnings are errors.
            warnings.simplefilter("ignore")
            present: bool = self._implementation().is_present()
        return present

    @contextmanager
    def reverted(self, revert: str | None = None) -> Iterator[None]:
        """Undo the fix in this process until the context ends, by ``revert`` or the way of record.

        The patch is process-wide and not for threads. A fix can be undone once at a time: a second revert of it inside
        the first would patch patched code, so it is refused with ``FixError``.
        """
        chosen = revert or self.reverts[0]
        if self.name in _active:
            raise FixError(
                f"fix {self.name!r} is already reverted by {_active[self.name]!r}: leave that context before "
                f"entering {chosen!r}"
            )
        reverts: Mapping[str, Revert] = self._implementation().REVERTS
        with reverts[chosen]():
            _active[self.name] = chosen
            try:
                yield
            finally:
                del _active[self.name]

    def _implementation(self) -> Any:
        return importlib.import_module(self.module)


_active: dict[str, str] = {}
"""Fix -> the revert that is in force in this process."""
