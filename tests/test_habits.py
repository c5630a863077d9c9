"""What real training scripts do, in every pair of subjects: equal where both sides are right, found where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.case import (
    AnyLayer,
    Autocast,
    Case,
    Cast,
    Checkpoint,
    DelayedScaling,
    Dropout,
    ExtraOutput,
    Float8CurrentScaling,
    FusedModule,
    Fuser,
    InPlace,
    Input,
    Jit,
    LayerNorm,
    Linear,
    NoGrad,
    Precision,
    Rearrange,
    Step,
    replace,
    walk,
)
from harness.device import activate
from tests.observed import V1_WORKS, observe

activate()

from harness.run import run_case  # noqa: E402
from harness.subjects import float64  # noqa: E402
from harness.subjects.base import Optimizers, Subject  # noqa: E402
from harness.subjects.thunder_jit import ThunderSubject  # noqa: E402

LINEAR = Linear(out_features=32)
INPUT = Input(features=32, requires_grad=True)
JITS = {
    "v2": Jit(entry="function"),
    "v1": Jit(executor="transformer_engine_v1", entry="function"),
    "torch": Jit(executor="torch", entry="function"),
}
EXECUTORS = ["v2", pytest.param("v1", marks=pytest.mark.skipif(not V1_WORKS, reason="v1 needs TE < 2.10")), "torch"]
SHARED: tuple[AnyLayer, ...] = (
    Linear(out_features=32, weight_operation="scale"),
    LayerNorm(),
    Linear(out_features=32, parameters="tied", weight_operation="transpose_twice"),
    Linear(out_features=32, bias=False),
    Linear(out_features=32, bias=False, parameters="called_again", weight_operation="cast_and_back"),
)
OUTPUTS: tuple[AnyLayer, ...] = (
    ExtraOutput(),
    LINEAR,
    ExtraOutput(gradient=False),
    InPlace(operation="relu_"),
    Rearrange(how="split_and_concatenate"),
    LINEAR,
    ExtraOutput(),
)
MODELS: dict[str, tuple[AnyLayer, ...]] = {
    "shared parameters": SHARED,
    "extra outputs": OUTPUTS,
    "dropout": (LINEAR, Dropout(), Checkpoint(body=(LayerNorm(),)), LINEAR),
    "a branch without grad": (
        LINEAR,
        NoGrad(body=(LayerNorm(), LINEAR)),
        Checkpoint(body=(NoGrad(body=(LINEAR,)), LINEAR)),
    ),
    "casts": (Cast(dtype="bfloat16", body=(LINEAR, LayerNorm())), LINEAR),
}
SCHEDULES = {
    "late backwards": (
        Step(backward="after_next_forward"),
        Step(gradients="accumulated"),
        Step(backward="after_next_step"),
        Step(gradients="zeroed"),
    ),
    "gradients of two steps": (Step(), Step(gradients="accumulated"), Step(gradients="zeroed"), Step()),
    "training": (
        Step(optimizer="sgd"),
        Step(before="load_state_dict", optimizer="sgd"),
        Step(before="new_parameters", optimizer="sgd"),
        Step(mode="inference"),
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_both_sides_agree(executor: str, model: str, schedule: str) -> None:
    case = Case(layers=MODELS[model], input=INPUT, steps=SCHEDULES[schedule], jit=JITS[executor])
    verdict, (subject, reference) = observe(case)
    assert verdict.findings == ()
    assert verdict.refusal is None
    for side in (subject, reference):
        assert [len(step.outputs) for step in side.steps] == [4 if model == "extra outputs" else 1] * 4
        trained = [step for step, plan in zip(side.steps, case.steps, strict=True) if plan.mode == "train"]
        assert all(step.input_gradient is not None for step in trained), "late ones are there at the end"
    if executor != "torch":
        assert verdict.te_linears >= 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines_agree(schedule: str) -> None:
    steps = tuple(replace(step, before="nothing", fp8=index != 1) for index, step in enumerate(SCHEDULES[schedule]))
    case = Case(layers=(LINEAR, LayerNorm(), LINEAR), input=INPUT, steps=steps, jit=None, fuser=Fuser())
    verdict, _ = observe(case)
    assert verdict.findings == ()
    assert verdict.refusal is None


SURPRISES = (
    Step(wrong_input=True),
    Step(trainable="last_layer"),
    Step(wrong_input=True, mode="no_grad"),
    Step(trainable="biases"),
    Step(backward="never"),
    Step(trainable="none"),
    Step(),
)
SURPRISED = {name: Case(layers=(LINEAR, LayerNorm(), LINEAR), input=INPUT, jit=jit) for name, jit in JITS.items()} | {
    "module": Case(layers=(LINEAR, Autocast(body=(Checkpoint(body=(LayerNorm(), LINEAR)),))), input=INPUT),
    "pipeline": Case(layers=(LINEAR, LayerNorm(), LINEAR), input=INPUT, jit=None, fuser=Fuser()),
    "fused": Case(layers=(LayerNorm(), LINEAR), input=INPUT, jit=None, fused_module=FusedModule()),
}


@pytest.mark.parametrize("name", [*EXECUTORS, "module", "pipeline", "fused"])
def test_frozen_parameters_and_exceptions_leave_nothing_behind(name: str) -> None:
    verdict, (subject, _) = observe(replace(SURPRISED[name], steps=SURPRISES))
    assert verdict.findings == ()
    assert verdict.refusal is None
    trained = [
        {path for path, value in step.parameter_gradients.items() if value is not None} for step in subject.steps
    ]
    last = [path for path, layer in walk(SURPRISED[name].layers) if isinstance(layer, Linear)][-1]
    everything = trained[-1]
    assert [len(step.outputs) for step in subject.steps] == [0, 1, 0, 1, 1, 1, 1]
    assert trained[1] == {path for path in everything if path.startswith(last)}
    assert trained[3] == {path for path in everything if path.endswith("bias")}
    assert all(trained[index] == set() for index in (0, 2, 4, 5))


@pytest.mark.parametrize("layout", ["transposed", "strided"])
@pytest.mark.parametrize(
    ("executor", "gradient_layout"), [("v2", "expanded"), ("torch", "transposed"), ("torch", "strided")]
)
def test_layouts_agree(layout: Any, executor: str, gradient_layout: Any) -> None:
    given = replace(INPUT, batch=(2, 8), layout=layout, gradient_layout=gradient_layout)
    case = Case(layers=(LINEAR, LINEAR), input=given, jit=JITS[executor])
    verdict, (subject, _) = observe(case)
    assert verdict.findings == ()
    plain = observe(replace(case, input=replace(given, layout="contiguous")))[1][0]
    assert torch.equal(subject.steps[0].outputs[0], plain.steps[0].outputs[0]), "a layout changes no value"


@pytest.mark.parametrize("batch", [(), (0,), (2, 0)])
def test_a_vector_and_an_empty_batch(batch: tuple[int, ...]) -> None:
    for executor in ("v2", "torch"):
        case = Case(layers=(LINEAR, LayerNorm(), LINEAR), input=replace(INPUT, batch=batch), jit=JITS[executor])
        assert run_case(case).findings == ()


def test_an_optimizer_and_loaded_parameters_change_the_output() -> None:
    still = Case(layers=(LINEAR,), input=INPUT, steps=(Step(), Step()), jit=JITS["torch"])
    outputs = [
        observe(replace(still, steps=steps))[1][0].steps[1].outputs[0]
        for steps in (
            still.steps,
            (Step(optimizer="sgd"), Step()),
            (Step(optimizer="adamw"), Step()),
            (Step(), Step(before="load_state_dict")),
        )
    ]
    assert all(not torch.equal(outputs[0], other) for other in outputs[1:])
    replaced = observe(replace(still, steps=(Step(), Step(before="new_parameters"))))[1][0].steps[1].outputs[0]
    assert torch.equal(replaced, outputs[3]), "the same values, in place or in new objects"


def test_dropout_drops_the_stated_share() -> None:
    case = Case(layers=(Dropout(probability=0.25),), input=replace(INPUT, batch=(64, 64)), jit=JITS["torch"])
    mask = float64.dropout_masks(case, 0)["0"]
    dropped, elements = int((mask == 0).sum()), mask.numel()
    # Six standard deviations of a binomial count: one false alarm in 10^9 seeds, and the seed is fixed.
    assert abs(dropped - elements / 4) < 6 * (elements * 0.25 * 0.75) ** 0.5
    assert set(mask.unique().tolist()) == {0.0, 1 / 0.75}


# Each habit, with a subject that gets it wrong


def forgets_to_add(patch: pytest.MonkeyPatch) -> None:
    """The JIT's side clears gradients where they are to be accumulated."""
    real = Subject._run_step

    def run(self: Subject, index: int, *rest: Any) -> Any:
        if isinstance(self, ThunderSubject):
            for parameter in self.parameters().values():
                parameter.grad = None
        return real(self, index, *rest)

    patch.setattr(Subject, "_run_step", run)


def keeps_old_parameters(patch: pytest.MonkeyPatch) -> None:
    real = ThunderSubject._arguments
    first: dict[int, list[Tensor]] = {}
    patch.setattr(
        ThunderSubject,
        "_arguments",
        lambda self: first.setdefault(id(self), [p.detach().clone().requires_grad_() for p in real(self)]),
    )


def optimizes_twice(patch: pytest.MonkeyPatch) -> None:
    real = ThunderSubject.optimized

    def again(self: ThunderSubject) -> None:
        real(self)
        Optimizers().step("sgd", self.parameters().values())

    patch.setattr(ThunderSubject, "optimized", again)


def other_random_numbers(patch: pytest.MonkeyPatch) -> None:
    real = ThunderSubject._call_and_note

    def call(self: ThunderSubject, index: int, x: Tensor) -> Any:
        torch.rand(())
        return real(self, index, x)

    patch.setattr(ThunderSubject, "_call_and_note", call)


def loses_an_output(patch: pytest.MonkeyPatch) -> None:
    real = ThunderSubject.forward

    def forward(self: ThunderSubject, index: int, x: Tensor) -> Any:
        first, *others = real(self, index, x)
        return (first, *(other + 1 for other in others))

    patch.setattr(ThunderSubject, "forward", forward)


WRONG: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str, str]] = {
    "accumulation": (forgets_to_add, "shared parameters", "gradients of two steps", "GradientDiffers"),
    "new parameters": (keeps_old_parameters, "casts", "training", "GradientMissing|OutputDiffers"),
    "optimizer": (optimizes_twice, "casts", "training", "OutputDiffers"),
    "dropout": (other_random_numbers, "dropout", "training", "OutputDiffers"),
    "outputs": (loses_an_output, "extra outputs", "training", "OutputDiffers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_habit_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, model, schedule, expected = WRONG[name]
    case = Case(layers=MODELS[model], input=INPUT, steps=SCHEDULES[schedule], jit=JITS["torch"])
    apply(monkeypatch)
    kinds = {type(finding).__name__ for finding in run_case(case).findings}
    assert kinds & set(expected.split("|")), kinds


@pytest.mark.parametrize("late", ["after_next_step", "never"])
def test_state_of_gradients_is_not_compared_before_a_backward_that_drops_it(late: Any) -> None:
    """Eager TE drops it in the forward under the other recipe, Thunder in its backward."""
    steps = (Step(recipe=DelayedScaling()), Step(backward=late), Step())
    precision = Precision(recipe=Float8CurrentScaling())
    case = Case(layers=(LINEAR,), input=INPUT, steps=steps, precision=precision, jit=JITS["v2"])
    verdict, (subject, reference) = observe(case)
    assert verdict.findings == ()
    states = [side.steps[1].fp8_state["0"].get("grad_output") for side in (subject, reference)]
    assert states[0] is not None
    assert states[1] is None, "otherwise the rule is needless"
