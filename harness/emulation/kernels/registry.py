"""Which functions of the extension are emulated, and what happens with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}
unimplemented_counts: Counter[str] = Counter()
"""Calls of functions that are not emulated, by name."""


def tex_function(function: _Function) -> _Function:
    """Register a function under its own name. Like a kernel, it runs outside autograd."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return function(*args, **kwargs)

    register(function.__name__, call)
    return call  # type: ignore[return-value]


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a ready function under ``name``."""
    if name in _functions:
        raise ValueError(f"{name} is registered twice")
    _functions[name] = function


def functions() -> dict[str, Callable[..., Any]]:
    """Everything registered so far, by name."""
    return dict(_functions)


def refusing_function(name: str) -> Callable[..., NoReturn]:
    """A function that counts the call and raises NotImplementedError with its name."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        unimplemented_counts[name] += 1
        raise NotImplementedError(not_covered(name))

    refuse.__name__ = name
    return refuse


def not_covered(name: str) -> str:
    """The message for a name that is not emulated."""
    return f"transformer_engine_torch.{name}: the CPU emulation of this project does not cover it"
