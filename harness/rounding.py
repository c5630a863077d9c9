"""Bounds for cases in which both sides may round differently: Monte Carlo arithmetic around a float64 run.

The case runs in float64, split into primitive operations (``harness.subjects.float64``), several times: once as it is,
and a few times with the result of every operation (and the operands of every reduction) multiplied by 1 + 8 u d, where
u is the unit roundoff of the case's dtype and d is uniform in [-1, 1]. Each noisy run is a stand-in for one legitimate
order and place of rounding; their largest distance from the clean run, row by row, is what rounding can do to this very
case (D. S. Parker, "Monte Carlo Arithmetic", 1997).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness import build
from harness.case import Case, Dtype
from harness.compare import Bounded, compared_tensors
from harness.subjects.float64 import UNIT_ROUNDOFF, Float64, coarsest_dtype

NOISY_RUNS = 4
MORE_NOISY_RUNS = 28
"""Made when a tensor is outside what the first ones allow, before that counts. A value that rounding may move across
zero decides whether ReLU lets a gradient pass: all or nothing, which a few runs may miss."""

NOISE = 8.0
"""Noise in units of roundoff. Rounding may go the same way in many elements, where independent noise averages out, and
a JIT may round several times inside one of our primitives. The largest error that was seen over the released versions,
as a share of the bound, is in docs/oracles.md."""

REDUCTIONS = {"mm", "addmm", "bmm", "sum", "mean"}
TF32_ROUNDOFF = 2.0**-11


class MonteCarloArithmetic(TorchDispatchMode):  # type: ignore[misc]  # torch is Any
    """Perturbs what every operation computes by a random relative error of up to ``unit_roundoff``."""

    def __init__(self, unit_roundoff: float, seed: int) -> None:
        super().__init__()
        self._unit_roundoff = unit_roundoff
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in REDUCTIONS:
            args = tuple(self._perturbed(arg) for arg in args)
        result = func(*args, **(kwargs or {}))
        # An alias of an argument was not computed.
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        if isinstance(result, tuple | list):
            return type(result)(self._perturbed(item) for item in result)
        return self._perturbed(result)

    def _perturbed(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=self._generator, dtype=value.dtype)
        return value * (1 + self._unit_roundoff * (2 * noise - 1))


def bounds(case: Case, unit_roundoff: float | None = None) -> Bounded:
    """What outputs and gradients of every step may be, whatever the order and place of rounding.

    ``unit_roundoff`` is that of the case's dtype unless it is given.
    Raises ``OverflowsError`` for a case whose values may overflow, depending on that order.
    """
    clean = _observe(case)
    dtype = coarsest_dtype(case)
    quantum = _quantum(dtype)

    def spread(seeds: range) -> dict[str, Tensor]:
        allowed = {key: torch.zeros_like(value) for key, value in clean.items()}
        for seed in seeds:
            with MonteCarloArithmetic(NOISE * (unit_roundoff or UNIT_ROUNDOFF[dtype]), seed):
                noisy = _observe(case)
            for key, value in noisy.items():
                allowed[key] = torch.maximum(allowed[key], _row_maximum((value - clean[key]).abs()))
        return {key: value + quantum for key, value in allowed.items()}

    runs = NOISY_RUNS + MORE_NOISY_RUNS
    reason = f"the spread of up to {runs} runs with random rounding, {NOISE:g} times that of {dtype}"
    return Bounded(clean, spread(range(NOISY_RUNS)), reason, lambda: spread(range(NOISY_RUNS, runs)))


def _observe(case: Case) -> dict[str, Tensor]:
    observation = Float64(case, "cpu").observe()
    if observation.failure is not None:
        raise observation.failure.error
    return compared_tensors(observation)


def _quantum(dtype: Dtype) -> float:
    """An absolute error below which relative ones mean nothing.

    With the exponents of float32, exp overflows for values beyond 88 and a sigmoid becomes exactly 0 where it should be
    about 1 / max, the smallest normal number; times the values around it that is still far below any result of
    interest. With those of float16 it is the spacing of subnormal numbers.
    """
    info = torch.finfo(build.DTYPES[dtype])
    return float(info.smallest_normal) * (info.eps if dtype == "float16" else 2.0**16)


def _row_maximum(error: Tensor) -> Tensor:
    """The largest error of each row: rows may differ in magnitude by far."""
    return error.amax(dim=-1, keepdim=True).expand_as(error) if error.ndim else error
