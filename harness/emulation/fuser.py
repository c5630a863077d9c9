"""Replaces TE's ``jit_fuser``: pointwise functions compute in fp32 inside and round once, as a fused GPU kernel does.

torch.compile would give the same rounding but costs seconds per function and a C++ compiler; running the functions
eagerly would round to bf16 after every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LOW_PRECISION = (torch.bfloat16, torch.float16)


def fp32_interior(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of tensors: bf16 and fp16 arguments are widened, results rounded to what eager torch returns."""
    result_dtypes: dict[tuple[Any, ...], list[torch.dtype | None]] = {}

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not any(_is_low_precision(leaf) for leaf in leaves):
            return function(*args, **kwargs)
        signature = tuple((leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        if signature not in result_dtypes:
            result_dtypes[signature] = _eager_result_dtypes(function, leaves, structure)
        widened = [leaf.float() if _is_low_precision(leaf) else leaf for leaf in leaves]
        wide_args, wide_kwargs = pytree.tree_unflatten(widened, structure)
        results, result_structure = pytree.tree_flatten(function(*wide_args, **wide_kwargs))
        rounded = [
            result if dtype is None else result.to(dtype)
            for result, dtype in zip(results, result_dtypes[signature], strict=True)
        ]
        return pytree.tree_unflatten(rounded, result_structure)

    return wrapper


def _is_low_precision(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in _LOW_PRECISION


def _eager_result_dtypes(
    function: Callable[..., Any], leaves: list[Any], structure: pytree.TreeSpec
) -> list[torch.dtype | None]:
    """The dtypes that the unwrapped function returns, found without computing anything."""
    meta = [leaf.detach().to("meta") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(meta, structure)
    with torch.no_grad():
        results = pytree.tree_leaves(function(*args, **kwargs))
    return [result.dtype if isinstance(result, torch.Tensor) else None for result in results]
