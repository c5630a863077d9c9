"""Stand-ins for packages that Transformer Engine imports at module level but that emulated code never runs.

They are never put in ``sys.modules``: torch would cache that triton is present and ``torch.compile`` would break.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NoReturn

_IMPORT_TIME_DSLS = frozenset({"triton", "onnx", "onnxscript"})
"""Packages whose names are used as decorators and annotations while a module is imported."""


def optional_import(name: str) -> Stub:
    """The stand-in for the module or attribute ``name`` (dotted)."""
    return Stub(name)


class Stub:
    """Any attribute of a missing package; usable at import time, refuses to compute."""

    __version__ = "3.5.0"

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Stub:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Stub(f"{self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Stub:
        if self._name.partition(".")[0] not in _IMPORT_TIME_DSLS:
            _refuse(self._name)
        if len(args) == 1 and isinstance(args[0], FunctionType | Kernel):
            return Kernel(args[0].__name__)
        return Stub(self._name)

    def __getitem__(self, item: Any) -> Stub:
        return self

    def __repr__(self) -> str:
        return f"<stub of {self._name}>"


class Kernel(Stub):
    """A function that a kernel language would have compiled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.__name__)

    def __getitem__(self, item: Any) -> Kernel:
        return self


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name} needs a package that the CPU emulation of this project replaces by a stub; it is not covered."
    )
