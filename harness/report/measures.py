"""How far the subject was from what was expected, tensor by tensor: in units of the last place and in FP8 steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.case import Case, DelayedScaling
from harness.checks.base import Run
from harness.compare import Comparison, gradient_key, output_key, output_name, shape_mismatch

MANTISSA_BITS = {"E4M3": 3, "E5M2": 2}


@dataclass(frozen=True, slots=True)
class Measure:
    """One tensor of one step at the element that is furthest beyond what is allowed."""

    step: int
    name: str
    error: float
    """Distance to the expected value; infinite for a NaN, a shape or a gradient that one side alone has."""
    ulp: float
    """The same in spacings of the tensor's dtype at the largest value of the row."""
    fp8_steps: float | None
    """The same in spacings of the FP8 format that TE uses for such a tensor; None without FP8."""
    allowed_ulp: float
    failed: bool
    note: str = ""


def measures(run: Run) -> list[Measure]:
    """Outputs and gradients of all steps that both sides finished."""
    return [
        measure
        for index, (ours, theirs) in enumerate(zip(run.subject.steps, run.reference.steps, strict=False))
        for key, name, subject, reference in [
            *(
                (output_key(index, number), output_name(number), *pair)
                for number, pair in enumerate(zip(ours.outputs, theirs.outputs, strict=False))
            ),
            (gradient_key(index, "input"), "gradient of the input", ours.input_gradient, theirs.input_gradient),
            *(
                (gradient_key(index, name), f"gradient of {name}", ours.parameter_gradients.get(name), gradient)
                for name, gradient in theirs.parameter_gradients.items()
            ),
        ]
        for measure in _measure(run.case, run.comparison, index, key, name, subject, reference)
    ]


def _measure(
    case: Case,
    comparison: Comparison,
    step: int,
    key: str,
    name: str,
    subject: Tensor | None,
    reference: Tensor | None,
) -> Iterator[Measure]:
    if subject is None and reference is None:
        return
    if subject is None or reference is None:
        yield Measure(step, name, math.inf, math.inf, None, 0.0, True, "None on one side only")
        return
    if (mismatch := shape_mismatch(subject, reference)) is not None:
        yield Measure(step, name, math.inf, math.inf, None, 0.0, True, mismatch.reason)
        return
    if reference.numel() == 0:
        return
    # Asked first: a bound may be widened when it is met.
    failed = comparison.difference(key, subject, reference) is not None
    expected, allowed = (tensor.double() for tensor in comparison.expected(key, reference))
    error = (subject.double() - expected).abs()
    error = torch.where(subject.isnan() & expected.isnan(), 0.0, error.nan_to_num(nan=math.inf))
    magnitude = _binade(_row_largest(expected))
    ulp = (magnitude * torch.finfo(reference.dtype).eps).clamp(min=torch.finfo(reference.dtype).smallest_normal)
    worst = int(torch.argmax(error / (allowed + ulp * 1e-3)))
    at = [float(tensor.flatten()[worst]) for tensor in (error, ulp, allowed, magnitude)]
    bits = _fp8_mantissa_bits(case, key)
    yield Measure(
        step=step,
        name=name,
        error=at[0],
        ulp=at[0] / at[1],
        fp8_steps=None if bits is None else at[0] / (at[3] * 2.0**-bits),
        allowed_ulp=at[2] / at[1],
        failed=failed,
    )


def _row_largest(values: Tensor) -> Tensor:
    finite = values.abs().nan_to_num(nan=0.0, posinf=0.0)
    return finite.amax(dim=-1, keepdim=True).expand_as(values) if values.ndim else finite


def _binade(magnitude: Tensor) -> Tensor:
    """The power of two at or below each value."""
    return torch.exp2(torch.floor(torch.log2(magnitude.clamp(min=2.0**-140))))


def _fp8_mantissa_bits(case: Case, key: str) -> int | None:
    """Of the format that gradients or, for outputs, operands are cast to; None where TE does not run the linears."""
    recipe = case.precision.recipe
    if recipe is None or (case.jit is not None and case.jit.executor == "torch"):
        return None
    hybrid = getattr(recipe, "format", DelayedScaling().format) == "HYBRID"
    return MANTISSA_BITS["E5M2" if hybrid and " gradient " in key else "E4M3"]


@dataclass(frozen=True, slots=True)
class StateSeries:
    """Scale and largest recorded amax of one quantised tensor over the steps, for both sides; None where not kept."""

    name: str
    steps: tuple[int, ...]
    scales: tuple[tuple[float | None, ...], tuple[float | None, ...]]
    amaxes: tuple[tuple[float | None, ...], tuple[float | None, ...]]

    @property
    def differs(self) -> bool:
        """Whether the two sides differ anywhere."""
        return self.scales[0] != self.scales[1] or self.amaxes[0] != self.amaxes[1]


def state_series(run: Run) -> list[StateSeries]:
    """The FP8 state of all linears over the steps; those that differ come first."""
    sides = (run.subject.steps, run.reference.steps)
    count = min(map(len, sides))
    names = {
        (path, tensor): None
        for steps in sides
        for step in steps[:count]
        for path, tensors in step.fp8_state.items()
        for tensor in tensors
    }
    series = []
    for path, tensor in names:
        states = [[step.fp8_state.get(path, {}).get(tensor) for step in steps[:count]] for steps in sides]
        scales = [tuple(None if state is None else float(state.scale) for state in side) for side in states]
        amaxes = [
            tuple(None if state is None else float(state.amax_history.max()) for state in side) for side in states
        ]
        series.append(
            StateSeries(
                name=f"linear {path}, {tensor}",
                steps=tuple(range(count)),
                scales=(scales[0], scales[1]),
                amaxes=(amaxes[0], amaxes[1]),
            )
        )
    return sorted(series, key=lambda one: not one.differs)
