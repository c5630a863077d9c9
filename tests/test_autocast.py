"""torch.autocast around steps and parts of a model, and recipes that change: equal where both sides are right."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from harness.case import (
    Activation,
    AnyLayer,
    Autocast,
    Case,
    DelayedScaling,
    Float8CurrentScaling,
    Fuser,
    Input,
    Jit,
    LayerNorm,
    Linear,
    Precision,
    Residual,
    Step,
    describe,
    executed,
    in_autocast,
    replace,
)
from harness.device import activate
from tests.observed import V1_WORKS, observe

activate()

from harness.precision import Recipes, claimed_linears  # noqa: E402
from harness.run import run_case  # noqa: E402
from harness.subjects.thunder_jit import ThunderSubject  # noqa: E402
from harness.subjects.thunder_te import ThunderTe  # noqa: E402

LINEAR = Linear(out_features=32)
INPUT = Input(features=32, requires_grad=True)
IN, OUT = Step(torch_autocast=True), Step()
CURRENT, OTHER = Float8CurrentScaling(), DelayedScaling(margin=3, amax_history_len=4)
EXECUTORS = [
    "transformer_engine",
    pytest.param("transformer_engine_v1", marks=pytest.mark.skipif(not V1_WORKS, reason="v1 needs TE < 2.10")),
    "torch",
]
PARTS: tuple[AnyLayer, ...] = (
    LINEAR,
    Autocast(body=(LINEAR, LayerNorm(), Autocast(enabled=False, body=(LINEAR, Activation())), LINEAR)),
    Residual(body=(Autocast(body=(LINEAR,)),)),
    LINEAR,
)
PLAIN: tuple[AnyLayer, ...] = (LINEAR, LayerNorm(), Residual(body=(LINEAR,)), Linear(out_features=32, bias=False))


def jit(executor: Any) -> Jit:
    return Jit(executor=executor, entry="function")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_both_sides_agree_around_steps(executor: str) -> None:
    """The first call is outside: otherwise the finding torch-autocast-never-ends would show."""
    steps = (OUT, replace(IN, optimizer="sgd"), OUT, replace(IN, backward="after_next_forward"), IN)
    case = Case(layers=PLAIN, input=INPUT, steps=steps, jit=jit(executor))
    verdict, (subject, _) = observe(case)
    assert verdict.findings == ()
    dtypes = [step.outputs[0].dtype for step in subject.steps]
    assert dtypes == [torch.bfloat16 if step.torch_autocast else torch.float32 for step in steps]
    assert verdict.te_linears == (0 if executor == "torch" else 6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_both_sides_agree_in_parts(executor: str) -> None:
    verdict, (subject, _) = observe(Case(layers=PARTS, input=INPUT, steps=(OUT, OUT), jit=jit(executor)))
    assert verdict.findings == ()
    assert subject.steps[0].outputs[0].dtype == torch.float32
    assert verdict.te_linears == (0 if executor == "torch" else 6)


def test_te_runs_without_grad_in_autocast() -> None:
    """v2 updates the state of such a pass, too; it is that of the specialisation."""
    steps = (IN, *(replace(IN, mode=mode) for mode in ("no_grad", "eval", "no_grad")))
    case = Case(layers=PLAIN, input=INPUT, steps=steps, jit=jit("transformer_engine"))
    verdict, (subject, _) = observe(case)
    assert verdict.findings == ()
    assert all(len(step.fp8_state) == 3 for step in subject.steps)
    outside = replace(case, steps=tuple(replace(step, torch_autocast=False) for step in steps))
    assert claimed_linears(outside, 1) == ()


def test_which_layers_are_in_autocast() -> None:
    assert list(in_autocast(PARTS, active=False)) == ["1.0", "1.1", "1.3", "2.0.0"]
    assert list(in_autocast(PARTS, active=True)) == ["0", "1.0", "1.1", "1.3", "2.0.0", "3"]
    dtypes = {path: dtype for path, _, _, dtype in executed(PARTS, 32, "bfloat16")}
    assert dtypes["1.2.0"] == "float32", "a part without autocast has float32 parameters"
    assert dtypes["1.0"] == "bfloat16"
    assert "autocast[Linear(32→32) → LayerNorm → autocast off[" in describe(PARTS, 32)


@pytest.mark.parametrize("others", [(None, CURRENT, None, CURRENT), (None, CURRENT, CURRENT)])
def test_both_sides_agree_on_another_recipe(others: tuple[Any, ...]) -> None:
    """What was compiled under DelayedScaling runs under Float8CurrentScaling, too."""
    steps = tuple(Step(recipe=recipe) for recipe in others)
    verdict = run_case(Case(layers=PLAIN, input=INPUT, steps=steps, jit=jit("transformer_engine")))
    assert verdict.findings == ()
    assert verdict.te_linears == 3


def test_pipelines_agree_on_another_recipe() -> None:
    steps = tuple(Step(recipe=recipe) for recipe in (None, CURRENT, OTHER, None))
    verdict = run_case(Case(layers=(LINEAR, LayerNorm(), LINEAR), input=INPUT, steps=steps, jit=None, fuser=Fuser()))
    assert verdict.findings == ()
    assert verdict.refusal is None


def test_a_subject_that_forgets_autocast_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThunderSubject, "torch_autocast", lambda self, index: nullcontext())
    verdict = run_case(Case(layers=(LINEAR,), input=INPUT, steps=(IN,), jit=jit("torch")))
    assert "OutputDiffers" in {type(finding).__name__ for finding in verdict.findings}


def test_a_subject_that_keeps_its_first_recipe_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ThunderTe.call

    def call(self: ThunderTe, index: int, x: Any) -> Any:
        monkeypatch.setattr(self.recipes, "for_step", lambda step: Recipes.for_step(self.recipes, 0))
        return real(self, index, x)

    monkeypatch.setattr(ThunderTe, "call", call)
    steps = (Step(), Step(recipe=CURRENT))
    case = Case(layers=(LINEAR,), input=INPUT, precision=Precision(), steps=steps, jit=jit("transformer_engine"))
    assert "OutputDiffers" in {type(finding).__name__ for finding in run_case(case).findings}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": (Step(recipe=CURRENT),), "precision": Precision(recipe=None)}, "step 0 has a recipe of its own"),
        ({"steps": (Step(recipe=CURRENT, fp8=False),)}, "step 0 has a recipe of its own"),
        ({"steps": (Step(recipe=CURRENT),), "jit": jit("transformer_engine_v1")}, "takes its recipe from thunder.jit"),
        ({"steps": (IN,), "jit": None, "fuser": Fuser()}, "outside torch.autocast"),
    ],
)
def test_impossible_cases_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Case(layers=(LINEAR,)), **change)
