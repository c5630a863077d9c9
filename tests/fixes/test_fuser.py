"""The fuser fix: backward of TE's operation fuser after its parameters were hidden, as FSDP hides them."""

from __future__ import annotations

from typing import Literal

import pytest

from harness.case import (
    Activation,
    AnyLayer,
    Case,
    DelayedScaling,
    Fuser,
    Input,
    LayerNorm,
    Precision,
    Recipe,
    RMSNorm,
    Step,
)
from tests.fixes.cases import findings, kinds, linear

WITH_PARAMETERS: dict[str, tuple[AnyLayer, ...]] = {
    "LayerNorm": (LayerNorm(),),
    "RMSNorm": (RMSNorm(),),
    "Linear": (linear(),),
    "relu, then Linear": (Activation(), linear()),
}
Hide = Literal["never", "between_forward_and_backward", "from_start"]


def fuser_case(*layers: AnyLayer, recipe: Recipe | None, hide: Hide = "between_forward_and_backward") -> Case:
    return Case(
        layers=layers,
        input=Input(requires_grad=True),
        precision=Precision(recipe=recipe),
        steps=(Step(),) * 3,
        jit=None,
        fuser=Fuser(hide_parameters=hide),
    )


@pytest.mark.parametrize("recipe", [None, DelayedScaling()], ids=["fp32", "fp8"])
@pytest.mark.parametrize("model", WITH_PARAMETERS)
def test_wrong_count_is_found(model: str, recipe: Recipe | None) -> None:
    case = fuser_case(*WITH_PARAMETERS[model], recipe=recipe)
    assert findings(case) == ()
    found = findings(case, "fuser")
    assert kinds(found) == {"SubjectRaised"}
    assert found[0].bucket.stage == "backward"
    assert found[0].bucket.where.startswith("RuntimeError: Expected op # to generate")


def test_parameters_that_stay_where_they_are_show_nothing() -> None:
    case = fuser_case(LayerNorm(), linear(), recipe=None, hide="never")
    assert findings(case, "fuser") == ()


def test_no_parameters_show_nothing() -> None:
    assert findings(fuser_case(Activation(), recipe=None), "fuser") == ()
