"""Candidates are valid, simpler and in order, and lead from any drawn case to a small one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.case import (
    Activation,
    Case,
    Checkpoint,
    GatedActivation,
    Input,
    Jit,
    Linear,
    Residual,
    Step,
    canonical_json,
    parse_case,
)
from harness.reduction.candidates import candidates, cost
from strategies import cases, fuser_cases

SETTINGS = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
DRAWN = st.one_of(cases("transformer_engine"), cases("torch"), fuser_cases())


@SETTINGS
@given(DRAWN)
def test_candidates_are_valid_simpler_and_in_order(case: Case) -> None:
    found = list(candidates(case))
    assert all(before < after for before, after in pairwise(position for position, _ in found))
    for _, candidate in found:
        assert cost(candidate) < cost(case)
        assert parse_case(canonical_json(candidate)) == candidate, "nothing that a file may not hold"
    middle = found[len(found) // 2 :]
    if middle:
        assert list(candidates(case, middle[0][0])) == middle


@SETTINGS
@given(DRAWN)
def test_every_case_leads_to_one_plain_layer(case: Case) -> None:
    while following := next(candidates(case), None):
        case = following[1]
    assert cost(case)[:3] == (1, 1, 0), case
    assert case.input == Input()


def test_widths_of_residuals_are_mended() -> None:
    wide = Residual(body=(Linear(out_features=256), GatedActivation(), Linear(out_features=64)))
    found = [candidate.layers for _, candidate in candidates(Case(layers=(wide,)))]
    assert (Residual(body=(Linear(out_features=128), GatedActivation())),) in found


def test_a_linear_that_loses_its_owner_gets_parameters_of_its_own() -> None:
    case = Case(layers=(Linear(out_features=64), Linear(out_features=64, parameters="tied")))
    assert Case(layers=(Linear(out_features=64),)) in [candidate for _, candidate in candidates(case)]


def test_the_subject_under_test_stays() -> None:
    case = Case(
        layers=(Checkpoint(body=(Activation(function="silu"),)),),
        jit=Jit(executor="torch", entry="function", cache="no caching"),
        steps=(Step(), Step(mode="eval")),
    )
    assert next(candidates(case))[1] == Case(layers=case.layers, jit=Jit(executor="torch"))
