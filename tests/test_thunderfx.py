"""ThunderFX as the entry: its graphs are observed like what ``thunder.jit`` compiles, and judged alike."""

from __future__ import annotations

import pytest

from harness.case import (
    Activation,
    AnyLayer,
    Autocast,
    Case,
    CaseError,
    Checkpoint,
    Dropout,
    ExtraOutput,
    Input,
    Jit,
    LayerNorm,
    Linear,
    NoGrad,
    Precision,
    Step,
    parse_case,
    replace,
)
from harness.device import activate
from harness.fixes import reverted
from harness.run import run_case

activate()

LINEAR = Linear(out_features=64)
FX = Case(layers=(LINEAR,), input=Input(requires_grad=True), steps=(Step(), Step()), jit=Jit(entry="thunderfx"))
LINEAR_JSON = b'{"schema": 1, "layers": [{"layer": "linear", "out_features": 64}], '
MODELS: dict[str, tuple[AnyLayer, ...]] = {
    "norm and two linears": (LayerNorm(), LINEAR, Activation(), LINEAR),
    "checkpoint": (Checkpoint(body=(LINEAR, Activation(function="gelu_tanh"))), LINEAR),
    "dropout": (LINEAR, Dropout(), LINEAR),
    "no_grad": (LINEAR, NoGrad(body=(LINEAR,))),
    "autocast": (LINEAR, Autocast(body=(LINEAR,))),
    "extra output": (LINEAR, ExtraOutput(), LINEAR),
}


@pytest.mark.parametrize("executor", ["transformer_engine", "torch"])
@pytest.mark.parametrize("model", MODELS)
def test_silent(model: str, executor: str) -> None:
    recipe = Precision() if executor != "torch" else Precision(recipe=None)
    jit = replace(FX.jit, executor=executor)
    verdict = run_case(replace(FX, layers=MODELS[model], jit=jit, precision=recipe))
    assert verdict.findings == ()
    assert verdict.refusal is None
    assert (verdict.te_linears > 0) is (executor != "torch")
    assert verdict.run.subject.compilations, "no trace was seen"


def test_each_shape_and_grad_mode_is_a_graph_that_is_kept() -> None:
    steps = (Step(), Step(batch=(64,)), Step(mode="no_grad"), Step(), Step(batch=(64,)))
    verdict = run_case(replace(FX, steps=steps))
    assert verdict.findings == ()
    assert [compilation.step for compilation in verdict.run.subject.compilations] == [0, 1, 2]
    states = [set(step.fp8_state) for step in verdict.run.subject.steps]
    assert states == [{"0"}, {"0"}, set(), {"0"}, {"0"}], "the state of the graph that ran"


def test_a_reverted_fix_is_found() -> None:
    case = replace(FX, layers=(Checkpoint(body=(LINEAR, Activation())),))
    assert run_case(case).findings == ()
    with reverted(["remat"]):
        checks = {finding.check for finding in run_case(case).findings}
    assert "name in forward and backward" in checks


def test_it_takes_functions() -> None:
    with pytest.raises(CaseError, match="set entry to 'module'"):
        parse_case(LINEAR_JSON + b'"jit": {"entry": "thunderfx", "names": "nested"}}')
