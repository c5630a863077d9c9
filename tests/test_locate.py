"""The place of a finding: the layer whose value differs first, the pass, the line, and the side that is wrong."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest

from harness.case import Activation, Case, Fuser, Input, Jit, LayerNorm, Linear, Step, replace
from harness.device import activate
from harness.fixes import reverted

activate()

from harness.locate import first_difference, locate, probed  # noqa: E402
from harness.run import run_case  # noqa: E402
from tests.report.support import judged  # noqa: E402

LINEAR = Linear(out_features=64)
PLAIN = Case(
    layers=(LINEAR, LayerNorm(), LINEAR), input=Input(requires_grad=True), jit=Jit(executor="torch", entry="function")
)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "caching",
            [
                "first wrong trace: the joint trace, made by the pass 'Grad transform pass'",
                "first difference: step 0, linear 0, amax history of the weight",
                "further from float64: thunder with TE v2, off by ",
            ],
        ),
        ("fuser", ["raised in transformer_engine/pytorch/ops/fuser.py, line "]),
        (
            "sigmoid-gradient-nan",
            ["further from float64: thunder with torch, off by a NaN or an infinity; eager torch"],
        ),
    ],
)
def test_known_bugs(name: str, lines: list[str]) -> None:
    judgement, reverts = judged(name)
    with reverted(reverts):
        found = locate(judgement.verdict, judgement.verdict.findings[0])
    for line in lines:
        assert any(said.startswith(line) for said in found), found


def test_the_first_layer_whose_value_differs_is_named() -> None:
    case, paths = probed(PLAIN) or (PLAIN, {})
    run = run_case(case).run
    assert first_difference(run, paths) is None
    step = run.subject.steps[0]
    output, first, second = step.outputs
    run.subject.steps[0] = changed(step, outputs=(output + 1, first, second))
    assert (first_difference(run, paths) or run).what == "output"  # type: ignore[union-attr]
    run.subject.steps[0] = changed(step, outputs=(output + 1, first, second + 1))
    difference = first_difference(run, paths)
    assert difference is not None
    assert difference.what == "value of layer 1 (LayerNorm)"
    gradients = {name: None if value is None else value + 1 for name, value in step.parameter_gradients.items()}
    run.subject.steps[0] = changed(step, parameter_gradients=gradients)
    difference = first_difference(run, paths)
    assert difference is not None
    assert difference.what == "gradient of 2.bias", "backward begins at the end, under the name of the given case"


@pytest.mark.parametrize(
    "case",
    [
        replace(PLAIN, layers=(LINEAR,)),
        replace(PLAIN, jit=Jit(executor="torch", entry="grad")),
        Case(layers=(LINEAR, Activation()), jit=None, fuser=Fuser()),
    ],
    ids=["one layer", "grad", "fuser"],
)
def test_models_without_further_outputs_are_not_probed(case: Case) -> None:
    assert probed(case) is None


def test_a_second_step_is_looked_at_after_the_first() -> None:
    run = run_case(replace(PLAIN, steps=(Step(), Step()))).run
    for index in (1, 0):
        run.subject.steps[index] = changed(run.subject.steps[index], input_gradient=None)
        difference = first_difference(run)
        assert difference is not None
        assert (difference.step, difference.what) == (index, "gradient of the input: None in thunder with torch")
