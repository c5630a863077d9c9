"""te.LayerNormLinear and te.LayerNormMLP against their parts: equal bit for bit where no kernel rounds less often."""

from __future__ import annotations

from typing import Any

import pytest

from harness.case import (
    Activation,
    AnyLayer,
    Case,
    DelayedScaling,
    ExtraOutput,
    Float8CurrentScaling,
    FusedModule,
    GatedActivation,
    Input,
    Jit,
    LayerNorm,
    Linear,
    Precision,
    RMSNorm,
    Step,
    replace,
)
from harness.device import activate
from tests.observed import observe

activate()

from harness.compare import Bounded  # noqa: E402
from harness.mutants import applied  # noqa: E402
from harness.run import run_case  # noqa: E402

LINEAR, NO_BIAS = Linear(out_features=32), Linear(out_features=32, bias=False)
WIDE = Linear(out_features=64)
LAYERS: dict[str, tuple[AnyLayer, ...]] = {
    "linear": (LayerNorm(), LINEAR),
    "linear and norm": (RMSNorm(zero_centered_gamma=True), ExtraOutput(), NO_BIAS),
    "mlp": (LayerNorm(zero_centered_gamma=True), WIDE, Activation(function="silu"), LINEAR),
    "mlp and norm": (
        LayerNorm(),
        ExtraOutput(),
        replace(WIDE, bias=False),
        GatedActivation(function="swiglu"),
        NO_BIAS,
    ),
    "frozen": (LayerNorm(frozen=("bias",)), replace(WIDE, frozen=("weight",)), Activation(), LINEAR),
}
RECIPES = {"delayed": DelayedScaling(), "current": Float8CurrentScaling(), "none": None}
TRAINING = (Step(optimizer="sgd"), Step(mode="eval"), Step(batch=(2, 8), optimizer="adamw"), Step())
MICROBATCHES = (
    Step(first_microbatch=True),
    Step(first_microbatch=False, gradients="accumulated", optimizer="sgd"),
    Step(first_microbatch=False),
    Step(first_microbatch=True, gradients="zeroed"),
)


def case(name: str, recipe: Any = "delayed", steps: tuple[Step, ...] = TRAINING, **fused: bool) -> Case:
    return Case(
        layers=LAYERS[name],
        input=Input(features=32, requires_grad=True),
        precision=Precision(recipe=RECIPES[recipe]),
        steps=steps,
        jit=None,
        fused_module=FusedModule(**fused),
    )


@pytest.mark.parametrize("recipe", ["delayed", "current"])
@pytest.mark.parametrize("name", LAYERS)
def test_both_sides_agree(name: str, recipe: str) -> None:
    verdict, (subject, reference) = observe(case(name, recipe))
    assert verdict.findings == ()
    assert verdict.refusal is None
    linears = sum(isinstance(layer, Linear) for layer in LAYERS[name])
    for side in (subject, reference):
        assert len(side.steps[0].outputs) == (2 if "norm" in name else 1)
        assert len(side.steps[0].fp8_state) == linears
        names = {"input", "weight", "grad_output"} if recipe == "delayed" else set()
        assert all(set(state) == names for state in side.steps[0].fp8_state.values())


@pytest.mark.parametrize("name", ["linear and norm", "mlp"])
def test_without_fp8_the_bound_is_derived(name: str) -> None:
    steps = (Step(optimizer="sgd"), Step(mode="eval"), Step())
    verdict = run_case(case(name, "none", steps))
    assert verdict.findings == ()
    assert isinstance(verdict.run.comparison, Bounded)


@pytest.mark.parametrize("fp8_weights", [False, True])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_microbatches_agree(name: str, fp8_weights: bool) -> None:
    assert run_case(case(name, steps=MICROBATCHES, fp8_weights=fp8_weights)).findings == ()


def test_fp8_weights_are_trained_and_loaded() -> None:
    steps = (Step(optimizer="adamw"), Step(optimizer="sgd"), Step(before="load_state_dict"), Step())
    verdict, (subject, _) = observe(case("mlp", steps=steps, fp8_weights=True))
    assert verdict.findings == ()
    plain = observe(case("mlp", steps=steps))[1][0]
    assert not plain.steps[1].outputs[0].equal(subject.steps[1].outputs[0]), "an FP8 weight is rounded after each step"


def test_calibration_fills_the_histories() -> None:
    """te.LayerNormLinear does not calibrate, nor does te.Linear (docs/findings.md): the MLP is looked at alone."""
    verdict, (subject, _) = observe(case("mlp", steps=(Step(calibrating=True), Step())))
    state = subject.steps[0].fp8_state["1"]["input"]
    assert state.amax_history.max() > 0
    assert {finding.check for finding in verdict.findings} >= {"fp8 amax history"}


@pytest.mark.parametrize(
    ("mutant", "name", "steps", "expected"),
    [
        ("layernorm-linear-returned-norm-without-gradient", "linear and norm", TRAINING, "GradientDiffers"),
        ("layernorm-linear-weight-never-updated", "linear", MICROBATCHES, "OutputDiffers"),
        ("layernorm-mlp-returned-norm-without-gradient", "mlp and norm", TRAINING, "GradientDiffers"),
    ],
)
def test_a_mutant_is_found(mutant: str, name: str, steps: tuple[Step, ...], expected: str) -> None:
    with applied(mutant):
        findings = run_case(case(name, steps=steps)).findings
    assert expected in {type(finding).__name__ for finding in findings}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (LINEAR,)}, "a norm and a linear"),
        ({"layers": (LayerNorm(), LINEAR, ExtraOutput())}, "right after its norm"),
        ({"layers": (LayerNorm(), WIDE, Activation(), NO_BIAS)}, "a bias or neither"),
        ({"layers": (LayerNorm(), Linear(out_features=32, weight_operation="scale"))}, "own weights"),
        ({"layers": (LayerNorm(), LINEAR, Activation(function="gelu"), LINEAR)}, "gelu_tanh"),
        ({"steps": (Step(torch_autocast=True),)}, "torch.autocast"),
        ({"steps": (Step(calibrating=True, fp8=False),)}, "calibrates needs a recipe"),
        ({"fused_module": FusedModule(fp8_weights=True), "precision": Precision(recipe=None)}, "need a recipe"),
        ({"fused_module": None, "jit": Jit(), "steps": (Step(first_microbatch=True),)}, "only a fused module"),
        ({"fused_module": None}, "exactly one of"),
    ],
)
def test_impossible_cases_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(case("linear", steps=(Step(),)), **change)
