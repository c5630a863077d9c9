"""How two tensors are compared: bit for bit, or within a bound derived for the case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from harness.subjects.base import Observation


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two tensors are apart and what was allowed, for the report."""

    largest: float
    allowed: float
    differing: int
    elements: int
    first_index: tuple[int, ...]
    subject_value: float
    reference_value: float
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.differing} of {self.elements} elements differ; at {list(self.first_index)}: "
            f"{self.subject_value!r} against {self.reference_value!r}; largest difference {self.largest:.3g}, "
            f"allowed {self.allowed:.3g} ({self.reason})"
        )


class Comparison(Protocol):
    """A rule for one case; ``key`` names the tensor (step and tensor name)."""

    def difference(self, key: str, subject: Tensor, reference: Tensor) -> Difference | None:
        """None when ``subject`` is as ``reference`` should be."""

    def expected(self, key: str, reference: Tensor) -> tuple[Tensor, Tensor]:
        """What the subject should give, and how far from it each element may be."""


class Exact:
    """Bit for bit (NaN equals NaN, and -0 differs from 0): both sides call the same kernels on the same values."""

    def difference(self, key: str, subject: Tensor, reference: Tensor) -> Difference | None:
        if (mismatch := shape_mismatch(subject, reference)) is not None:
            return mismatch
        wrong = _bits(subject) != _bits(reference)
        both_nan = subject.isnan() & reference.isnan()
        return describe(subject, reference, wrong & ~both_nan, 0.0, "same kernels on the same values: bit for bit")

    def expected(self, key: str, reference: Tensor) -> tuple[Tensor, Tensor]:
        return reference, torch.zeros_like(reference)


class Bounded:
    """Within a bound per row of the tensor around a float64 value, see ``harness.rounding``.

    ``more`` gives further bounds, which cost time: they are asked for once, when a tensor is outside those at hand.
    """

    def __init__(
        self,
        exact: Mapping[str, Tensor],
        allowed: Mapping[str, Tensor],
        reason: str,
        more: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self._exact = exact
        self._allowed = dict(allowed)
        self._reason = reason
        self._more: Callable[[], Mapping[str, Tensor]] | None = more

    def difference(self, key: str, subject: Tensor, reference: Tensor) -> Difference | None:
        if (mismatch := shape_mismatch(subject, reference)) is not None:
            return mismatch
        exact = self._exact[key]
        error = (subject.double() - exact).abs()
        # A NaN or an infinity of the subject where float64 has none is never within the bound.
        if self._more is not None and not bool((error <= self._allowed[key]).all()):
            for name, value in self._more().items():
                self._allowed[name] = torch.maximum(self._allowed[name], value)
            self._more = None
        allowed = self._allowed[key]
        return describe(
            subject, exact, ~(error <= allowed), float(allowed.max()) if allowed.numel() else 0.0, self._reason
        )

    def expected(self, key: str, reference: Tensor) -> tuple[Tensor, Tensor]:
        return self._exact[key], self._allowed[key]


def output_name(number: int) -> str:
    """``output`` for the last layer's, ``extra output #0``... for the others."""
    return "output" if number == 0 else f"extra output #{number - 1}"


def output_key(index: int, number: int) -> str:
    """The key of an output: step and name."""
    return f"{index} {output_name(number)}"


def gradient_key(index: int, name: str) -> str:
    """The key of a gradient: step and parameter, or ``input``."""
    return f"{index} gradient {name}"


def compared_tensors(observation: Observation) -> dict[str, Tensor]:
    """All outputs and gradients that were observed, by key."""
    found: dict[str, Tensor] = {}
    for index, step in enumerate(observation.steps):
        found |= {output_key(index, number): output for number, output in enumerate(step.outputs)}
        gradients = {"input": step.input_gradient, **step.parameter_gradients}
        found |= {gradient_key(index, name): value for name, value in gradients.items() if value is not None}
    return found


def shape_mismatch(subject: Tensor, reference: Tensor) -> Difference | None:
    """A difference when shape or dtype differ."""
    if subject.shape == reference.shape and subject.dtype == reference.dtype:
        return None
    reason = f"shape and dtype: {_form(subject)} against {_form(reference)}"
    return Difference(math.inf, 0.0, subject.numel(), subject.numel(), (), math.nan, math.nan, reason)


def describe(subject: Tensor, reference: Tensor, wrong: Tensor, allowed: float, reason: str) -> Difference | None:
    """The difference at the elements marked ``wrong``; None when there are none."""
    if not bool(wrong.any()):
        return None
    apart = (subject.double() - reference.double()).abs()
    first = tuple(int(i) for i in wrong.nonzero()[0])
    return Difference(
        largest=float(apart[wrong].nan_to_num(nan=math.inf).max()),
        allowed=allowed,
        differing=int(wrong.sum()),
        elements=wrong.numel(),
        first_index=first,
        subject_value=float(subject[first]),
        reference_value=float(reference[first]),
        reason=reason,
    )


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _bits(tensor: Tensor) -> Tensor:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()])
