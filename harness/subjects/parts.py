"""Single layers compiled by Thunder with torch alone.

Thunder splits norms and activations into primitive operations, which round differently from TE's and torch's fused
kernels. One ulp is enough to move an FP8 rounding to the next value, so a reference that uses other kernels than the
JIT can be compared only loosely. The reference therefore runs each such layer as Thunder compiles it on its own, and
TE's eager linears in between: whatever the JIT does to the whole model must equal, bit for bit, the composition of its
parts. That the parts themselves are right is checked where no FP8 is involved, by the cases of the ``torch`` executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import thunder
import torch
from torch import Tensor

from harness.case import AnyLayer, Linear, replace
from harness.program import compile_function

CACHED_PARTS = 512
"""Compiled parts kept per process. They hold no state, so keeping them changes no verdict as long as Thunder stays the
same."""


def run_part(layer: AnyLayer, x: Tensor, parameters: list[Tensor], *, differentiated: bool) -> Tensor:
    """One layer, compiled by Thunder on its own.

    ``differentiated`` says that the whole model is: Thunder then splits up also the layers that need no gradient, and
    otherwise hands them to torch's fused kernels.
    """
    if not differentiated or any(t.requires_grad for t in (x, *parameters)):
        return _call(layer, x, parameters)
    return _call(layer, x.detach().requires_grad_(), parameters).detach()


def forget_compiled() -> None:
    """Compile all parts anew: Thunder itself was changed."""
    _compiled.cache_clear()


def _call(layer: AnyLayer, x: Tensor, parameters: list[Tensor]) -> Tensor:
    if isinstance(layer, Linear):
        layer = replace(layer, parameters="own")  # whose parameters they are does not matter for one call
    signature = tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in (x, *parameters))
    return _compiled(layer, signature, torch.is_grad_enabled())(x, *parameters)


@lru_cache(maxsize=CACHED_PARTS)
def _compiled(layer: AnyLayer, signature: tuple[Any, ...], grad_enabled: bool) -> Callable[..., Tensor]:
    (shape, _, _), *_ = signature
    return thunder.jit(compile_function((layer,), shape[-1]), executors=[thunder.pytorch_executor])
