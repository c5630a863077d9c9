"""Fills in what recent torch releases removed and Lightning Thunder still needs at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_REMOVED_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")
"""Named-tensor methods that torch 2.13 dropped. Thunder 0.2.6 looks them up when it is imported, to list what it does
not support; it never calls them."""


def restore_named_tensor_methods() -> tuple[str, ...]:
    """Make Thunder importable: put the removed named-tensor methods back on ``torch.Tensor``, only where missing.

    Call it before ``import thunder``; calling it again does nothing. ``has_names()`` answers False, which is true of
    every tensor without named dimensions; the others raise NotImplementedError when called.

    Returns:
        The names that were added, empty on a torch that still has them.
    """
    import torch

    missing = tuple(name for name in _REMOVED_METHODS if not hasattr(torch.Tensor, name))
    for name in missing:
        setattr(torch.Tensor, name, _stand_in(name))
    return missing


def _stand_in(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> bool:
        if name == "has_names":
            return False
        raise NotImplementedError(f"torch.Tensor.{name}: this torch has no named tensors")

    # Thunder insists that a method's own name is the attribute it is found under.
    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    return method
