"""Delayed-scaling state against the rule of its recipe: silent on what Thunder and TE do, and not on a wrong state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any

import pytest
import torch

from harness.case import Activation, Case, DelayedScaling, Input, Jit, Linear, Precision, Step, replace
from harness.subjects.base import QuantizerState, StepObservation
from tests.observed import V1_WORKS, edit_step, observe

LINEAR = Linear(out_features=32)
ONE = Case(
    layers=(LINEAR, Activation(), LINEAR),
    input=Input(features=32, requires_grad=True),
    precision=Precision(recipe=DelayedScaling(amax_history_len=4)),
    steps=(Step(), Step(), Step()),
    jit=Jit(entry="function"),
)
Change = Callable[[QuantizerState], dict[str, Any]]


def with_recipe(case: Case, **parameters: Any) -> Case:
    return replace(case, precision=Precision(recipe=DelayedScaling(**parameters)))


def rule_findings(case: Case, tensor: str = "weight", change: Change | None = None) -> set[str]:
    """Kinds of findings of the rule when the last step's state of one tensor of linear 0 is falsified."""

    def changed(step: StepObservation) -> dict[str, Any]:
        assert change is not None
        state = step.fp8_state["0"][tensor]
        linear = {**step.fp8_state["0"], tensor: replace_fields(state, **change(state))}
        return {"fp8_state": {**step.fp8_state, "0": linear}}

    verdict, _ = observe(case, None if change is None else edit_step(len(case.steps) - 1, changed))
    return {type(finding).__name__ for finding in verdict.findings if finding.check.endswith("rule")}


SILENT = {
    "short history": ONE,
    "long history": with_recipe(ONE),
    "history of one row": with_recipe(ONE, amax_history_len=1),
    "history of two rows": with_recipe(ONE, amax_history_len=2),
    "most recent": with_recipe(ONE, amax_history_len=4, amax_compute_algo="most_recent"),
    "margin and format": with_recipe(ONE, margin=3, format="E4M3"),
    "zeros": replace(ONE, input=Input(features=32, distribution="zeros")),
    "no cache": replace(ONE, jit=Jit(entry="function", cache="no caching")),
    "two shapes": replace(ONE, steps=(Step(), Step(batch=(32,)), Step(), Step(batch=(32,)))),
    "grad": replace(ONE, jit=Jit(entry="grad")),
    "no_grad between": replace(ONE, steps=(Step(), Step(mode="no_grad"), Step())),
    "bfloat16": replace(ONE, input=Input(features=32, dtype="bfloat16", distribution="wide_range_rows")),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_v2_does_follows_the_rule(name: str) -> None:
    assert rule_findings(SILENT[name]) == set()


@pytest.mark.skipif(not V1_WORKS, reason="Thunder's v1 executor needs a TE before 2.10")
@pytest.mark.parametrize("name", sorted(SILENT.keys() - {"grad"}))
def test_what_v1_does_follows_the_rule(name: str) -> None:
    case = SILENT[name]
    assert case.jit is not None
    assert rule_findings(replace(case, jit=replace(case.jit, executor="transformer_engine_v1"))) == set()


@pytest.mark.parametrize("tensor", ["input", "weight", "grad_output"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda state: {"amax_history": torch.roll(state.amax_history, -1)}, "HistoryNotMoved"),
        (lambda state: {"scale": state.scale * 2}, "ScaleNotOfAmax"),
        (lambda state: {"scale": torch.ones_like(state.scale)}, "ScaleNotOfAmax"),
        (lambda state: {"format": "E3M4"}, "WrongFormat"),
        (lambda state: {"own_columns": False}, "ForeignColumns"),
    ],
)
def test_a_wrong_state_is_found(tensor: str, change: Change, expected: str) -> None:
    assert rule_findings(ONE, tensor, change) == {expected}


def newest_doubled(state: QuantizerState) -> dict[str, Any]:
    history = state.amax_history.clone()
    history[-1] *= 2
    return {"amax_history": history}


@pytest.mark.parametrize(("tensor", "expected"), [("input", "AmaxNotOfTensor"), ("weight", "AmaxNotOfTensor")])
def test_the_amax_of_a_known_tensor_is_checked(tensor: str, expected: str) -> None:
    assert rule_findings(ONE, tensor, newest_doubled) == {expected}


def test_a_history_of_one_row_still_gives_the_scale_of_a_known_tensor() -> None:
    case = with_recipe(ONE, amax_history_len=1)
    assert rule_findings(case, "weight", lambda state: {"scale": state.scale / 2}) == {"ScaleNotOfAmax"}
