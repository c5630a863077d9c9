"""Delayed-scaling state follows its recipe from step to step: the subject's state against the rule, not a reference.

Subject and reference call the same functions of TE to update scales and to make quantizers, so an error in them shows
on both sides alike. What the rule says (``DelayedScaling`` in transformer_engine/common/recipe): the history moves by
one row and takes the amax of the step, and the scale is the largest value of the format over the amax, over 2^margin.
Where the quantised tensor is known without running anything, its amax is, too: weights, the input of a first linear,
the gradient behind a last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.build import AUTOCAST_DTYPE, make_input, make_output_gradient, make_parameters
from harness.case import Case, DelayedScaling, Linear, in_autocast, linears
from harness.checks.base import Evidence, Finding, Run
from harness.precision import specialisation
from harness.subjects.base import LinearState, QuantizerState

LARGEST = {"E4M3": 448.0, "E5M2": 57344.0}
"""Largest values of the formats (``Format`` in transformer_engine/common/recipe)."""

SCALE_TOLERANCE = 2.0**-22
"""448 / amax is rounded twice in one of TE's two implementations."""


class HistoryNotMoved(Finding):
    """An amax history is not the one of the step before, moved by one row."""

    check: ClassVar[str] = "fp8 history rule"
    promise: ClassVar[str] = "An amax history is that of the step before, moved by one row."


class AmaxNotOfTensor(Finding):
    """The amax in a history is not that of the tensor that was quantised."""

    check: ClassVar[str] = "fp8 amax rule"
    promise: ClassVar[str] = "The amax in a history is that of the tensor that was quantised."


class ScaleNotOfAmax(Finding):
    """A scale does not follow from the amax history."""

    check: ClassVar[str] = "fp8 scale rule"
    promise: ClassVar[str] = "A scale follows from the amax history as the recipe says."


class WrongFormat(Finding):
    """A quantizer casts to another format than the recipe says."""

    check: ClassVar[str] = "fp8 format rule"
    promise: ClassVar[str] = "A quantizer casts to the format that the recipe says."


class ForeignColumns(Finding):
    """A quantizer reads another scale than its own, or writes into another history."""

    check: ClassVar[str] = "fp8 quantizer rule"
    promise: ClassVar[str] = "A quantizer reads its own scale and writes into its own history."


def check(run: Run) -> Iterator[Finding]:
    """The violations of the first step that has any.

    The fuser's cases are left out: steps of another mode and shape move on the same state. So are cases in which a step
    brings a recipe of its own, which may make new state.
    """
    case = run.case
    if case.jit is None or not isinstance(case.precision.recipe, DelayedScaling):
        return
    if any(step.recipe is not None for step in case.steps):
        return
    before: dict[Any, Mapping[str, LinearState]] = {}
    for index, step in enumerate(run.subject.steps):
        states = before.get(specialisation(case, index), {})
        amaxes = _known_amaxes(case, index) if step.fp8_state else {}
        findings = [
            finding
            for path, linear in step.fp8_state.items()
            for tensor, now in linear.items()
            # A late backward moves the history of gradients on in a later step than its own, or never.
            if tensor != "grad_output" or not any(plan.backward != "now" for plan in case.steps)
            for finding in _check(
                run, index, path, tensor, states.get(path, {}).get(tensor), now, amaxes.get((path, tensor))
            )
        ]
        if findings:
            yield from findings
            return
        if step.fp8_state:
            before[specialisation(case, index)] = step.fp8_state


def _check(
    run: Run, index: int, path: str, tensor: str, before: QuantizerState | None, now: QuantizerState, amax: float | None
) -> Iterator[Finding]:
    recipe = run.case.precision.recipe
    assert isinstance(recipe, DelayedScaling)
    place = f"step {index}, linear {path}, {tensor}"
    stage = run.case.steps[index].mode
    if now.format != (expected_format := _format(recipe, tensor)):
        message = f"{place}: it is cast to {now.format}, the recipe says {expected_format}"
        yield WrongFormat(run, message, stage=stage, where=tensor, evidence=Evidence((path,)))
    if not now.own_columns:
        message = f"{place}: its quantizer does not use its own scale and history"
        yield ForeignColumns(run, message, stage=stage, where=tensor, evidence=Evidence((path,)))
    history = now.amax_history.double().cpu()
    old = torch.zeros_like(history) if before is None else before.amax_history.double().cpu()
    if not bool(torch.isfinite(history).all()) or not bool(torch.isfinite(old).all()):
        return  # the rule says nothing of infinite values
    if len(history) > 1:
        newest = _newest(run.case, old, history)
        if newest is None:
            message = f"{place}: the history went from {_ends(old)} to {_ends(history)}"
            yield HistoryNotMoved(run, message, stage=stage, where=tensor, evidence=Evidence((path,)))
            return
        # A gradient that nobody needs is not quantised.
        if amax is not None and newest != amax and not (tensor == "grad_output" and newest == 0):
            message = f"{place}: the newest amax is {newest!r}, that of the tensor {amax!r}"
            yield AmaxNotOfTensor(run, message, stage=stage, where=tensor, evidence=Evidence((path,)))
            return
    elif amax is not None:
        newest = amax
    else:
        return  # a history of one row does not keep the amax
    used = newest if recipe.amax_compute_algo == "most_recent" else max(newest, *old[1:].tolist(), 0.0)
    scale = 1.0 if before is None else float(before.scale)
    expected = _scale(used, scale, recipe, tensor)
    if abs(float(now.scale) - expected) > SCALE_TOLERANCE * expected:
        message = f"{place}: the scale is {float(now.scale)!r} where the amax {used!r} asks for {expected!r}"
        yield ScaleNotOfAmax(run, message, stage=stage, where=tensor, evidence=Evidence((path,)))


def _newest(case: Case, old: Tensor, now: Tensor) -> float | None:
    """The amax that the step added; None when the history did not move as it should."""
    if float(now[0]) == 0 and torch.equal(now[1:-1], old[2:]):
        return float(now[-1])
    assert case.jit is not None
    # TE's fused update, which v1 calls, leaves the history of an amax of 0 alone.
    if case.jit.executor == "transformer_engine_v1" and torch.equal(now, old):
        return 0.0
    return None


def _scale(amax: float, old: float, recipe: DelayedScaling, tensor: str) -> float:
    if amax == 0:
        return old
    scale = LARGEST[_format(recipe, tensor)] / amax / 2**recipe.margin
    return min(scale, torch.finfo(torch.float32).max)


def _format(recipe: DelayedScaling, tensor: str) -> str:
    return "E5M2" if tensor == "grad_output" and recipe.format == "HYBRID" else "E4M3"


def _known_amaxes(case: Case, index: int) -> dict[tuple[str, str], float]:
    """By path and tensor, where no layer has to be run to know it."""
    assert case.jit is not None
    known: dict[tuple[str, str], float] = {}
    cast = set(in_autocast(case.layers, case.steps[index].torch_autocast))

    def amax(path: str, operand: Tensor) -> float:
        return _amax(operand.to(AUTOCAST_DTYPE) if path in cast else operand)

    if not _parameters_changed(case, index):
        values = make_parameters(case)
        known = {
            (path, "weight"): amax(path, values[f"{path}.weight"])
            for path, layer, _, _ in linears(case.layers, case.input.features)
            if layer.parameters == "own" and layer.weight_operation == "none"
        }
    last = str(len(case.layers) - 1)
    if isinstance(case.layers[0], Linear):
        known["0", "input"] = amax("0", make_input(case, index))
    if isinstance(case.layers[-1], Linear):
        gradient = 1.0 if case.jit.entry == "grad" else amax(last, make_output_gradient(case, index))
        known[last, "grad_output"] = gradient
    return known


def _parameters_changed(case: Case, index: int) -> bool:
    """Whether the parameters of step ``index`` may be others than the initial ones."""
    before, now = case.steps[:index], case.steps[: index + 1]
    return any(step.optimizer != "none" for step in before) or any(step.before != "nothing" for step in now)


def _amax(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _ends(history: Tensor) -> str:
    values = [f"{value:.4g}" for value in history.tolist()]
    return f"[{', '.join(values if len(values) <= 6 else [*values[:3], '...', *values[-3:]])}]"
