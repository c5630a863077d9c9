"""Errors put into the pipeline on purpose: each is caught by the check that is meant for it.

Where it can be done, Thunder's or TE's own code is made to do the wrong thing while the subject under test runs. What
no code can be made to do is edited into the observation. The same cases without an error are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as replace_fields
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from thunder.core import prims
from thunder.executors import passes
from thunder.executors import transformer_engineex_impl as v2
from torch import Tensor

from harness import precision
from harness.case import Activation, Case, Checkpoint, Dropout, Input, Jit, LayerNorm, Linear, Step, replace
from harness.checks.base import Finding
from harness.run import run_case
from harness.subjects import thunder_jit
from harness.subjects.base import Compilation, Observation, StepObservation
from harness.subjects.eager_te_ops import EagerTeOps
from harness.subjects.thunder_torch import ThunderTorch
from harness.traces import LINEAR_FORWARD, pass_name, state_object
from tests.observed import V1_WORKS, edit_step, observe

LINEAR = Linear(out_features=32)
GIVEN = Input(batch=(16,), features=32, requires_grad=True)
ONE = Case(layers=(LINEAR,), input=GIVEN, steps=(Step(), Step()))
TWO = replace(ONE, layers=(LINEAR, LINEAR))
V1 = replace(TWO, jit=Jit(executor="transformer_engine_v1"))
TORCH = replace(ONE, layers=(LINEAR, Activation(function="gelu")), jit=Jit(executor="torch"))
# One in four cases, but not one in twelve: what a run leaves behind is not looked at.
SAMPLED = replace(TORCH, seed=5)
DROPOUT = replace(TORCH, layers=(LINEAR, Dropout(), Dropout(probability=0.25)))
REGION = replace(ONE, layers=(Checkpoint(body=(LINEAR, Activation())), LINEAR))

needs_v1 = pytest.mark.skipif(not V1_WORKS, reason="Thunder's v1 executor needs a TE before 2.10")
Patch = pytest.MonkeyPatch
Edit = Callable[[Observation], None]


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [type(finding).__name__ for finding in findings]


@lru_cache
def silent_without_error(case: Case) -> bool:
    return run_case(case).findings == ()


def test_the_cases_are_silent_without_an_error() -> None:
    for case in (ONE, TWO, TORCH, REGION, *([V1] if V1_WORKS else [])):
        assert silent_without_error(case)


# Thunder and TE made to do the wrong thing


def scale_doubled(patch: Patch) -> None:
    real = v2._amax_and_scale_update

    def update(history: Tensor, scale: Tensor, *rest: Any) -> None:
        real(history, scale, *rest)
        scale.mul_(2)

    patch.setattr(v2, "_amax_and_scale_update", update)


def scale_never_updated(patch: Patch) -> None:
    patch.setattr(v2, "_amax_and_scale_update", lambda *args: None)


def history_updated_twice(patch: Patch) -> None:
    real = v2._amax_and_scale_update

    def update(*args: Any) -> None:
        real(*args)
        real(*args)

    patch.setattr(v2, "_amax_and_scale_update", update)


def recipe_with_another_margin(patch: Patch) -> None:
    wrong = v2.te_recipe.DelayedScaling(margin=1)
    patch.setattr(v2.TERecipe, "__call__", lambda self: wrong)


def kernels(patch: Patch, **replaced: Callable[..., Any]) -> None:
    """Give Thunder's executor other kernels and leave eager TE its own."""
    real = v2.BasicLinear
    own = {"_functional_forward": real._functional_forward, "_functional_backward": real._functional_backward}
    patch.setattr(v2, "BasicLinear", SimpleNamespace(**(own | replaced)))


def weight_gradients_swapped(patch: Patch) -> None:
    real = v2.BasicLinear._functional_backward
    kept: list[Tensor] = []

    def backward(**arguments: Any) -> tuple[Tensor, Tensor]:
        input_gradient, weight_gradient = real(**arguments)
        kept.append(weight_gradient)
        if len(kept) == 2:
            first, second = kept[0].clone(), kept[1].clone()
            kept[0].copy_(second)
            kept[1].copy_(first)
            kept.clear()
        return input_gradient, weight_gradient

    kernels(patch, _functional_backward=backward)


def weight_gradient_lost(patch: Patch) -> None:
    real = v2.put_grad
    patch.setattr(v2, "put_grad", lambda of, gradient: None if of.name == "t_weight_0" else real(of, gradient))


def nan_in_the_output(patch: Patch) -> None:
    real = v2.BasicLinear._functional_forward

    def forward(**arguments: Any) -> tuple[Tensor, Any, Any]:
        output, *saved = real(**arguments)
        output[0, 0] = float("nan")
        return output, *saved

    kernels(patch, _functional_forward=forward)


def input_written(patch: Patch) -> None:
    real = v2.BasicLinear._functional_forward

    def forward(**arguments: Any) -> Any:
        result = real(**arguments)
        arguments["input"].data.mul_(2)
        return result

    kernels(patch, _functional_forward=forward)


def kernel_raises(patch: Patch) -> None:
    def backward(**arguments: Any) -> Any:
        raise ValueError("no such kernel")

    kernels(patch, _functional_backward=backward)


def reference_raises(patch: Patch) -> None:
    def run_claimed(*args: Any) -> Any:
        raise ValueError("no such op")

    patch.setattr(EagerTeOps, "run_claimed", run_claimed)


def both_raise_differently(patch: Patch) -> None:
    kernel_raises(patch)
    reference_raises(patch)


def states_shared(patch: Patch) -> None:
    """All linears quantise with the state of the first one, each through an object of its own."""
    real = v2.TERecipeState.__call__
    owners: dict[str, Any] = {}

    def call(self: Any, recipe: Any, mode: str, quantizers: int) -> Any:
        self.state = real(owners.setdefault(mode, self), recipe, mode, quantizers)
        return self.state

    patch.setattr(v2.TERecipeState, "__call__", call)


def te_claims_nothing(patch: Patch) -> None:
    patch.setattr(v2, "check_dim_for_fp8_exec", lambda tensor: False)


def output_detached(patch: Patch) -> None:
    real = ThunderTorch.call
    patch.setattr(ThunderTorch, "call", lambda self, index, x: real(self, index, x).detach())


def v1_modules_shared(patch: Patch) -> None:
    from thunder.executors import transformer_engine_v1ex as v1

    patch.setattr(v1, "TELinear", lru_cache(v1.TELinear))


def compiles(*layers: Any) -> Callable[[Patch], None]:
    """The JIT gets another model."""

    def apply(patch: Patch) -> None:
        real = thunder_jit.make_module
        patch.setattr(
            thunder_jit, "make_module", lambda _, width, parameters, names: real(layers, width, parameters, names)
        )

    return apply


PATCHES: dict[str, tuple[Case, Callable[[Patch], None], str]] = {
    "scale doubled": (ONE, scale_doubled, "ScaleDiffers"),
    "scale never updated": (ONE, scale_never_updated, "AmaxHistoryDiffers"),
    "history updated twice": (ONE, history_updated_twice, "AmaxHistoryDiffers"),
    "another margin": (ONE, recipe_with_another_margin, "ScaleDiffers"),
    "weight gradients swapped": (TWO, weight_gradients_swapped, "GradientDiffers"),
    "weight gradient lost": (ONE, weight_gradient_lost, "GradientMissing"),
    "NaN on one side": (ONE, nan_in_the_output, "OutputDiffers"),
    "input written": (ONE, input_written, "InputChanged"),
    "subject raises": (ONE, kernel_raises, "SubjectRaised"),
    "reference raises": (ONE, reference_raises, "ReferenceRaised"),
    "both raise differently": (ONE, both_raise_differently, "ExceptionsDiffer"),
    "state shared by two linears": (TWO, states_shared, "AmaxHistoryDiffers"),
    "TE claims nothing": (TWO, te_claims_nothing, "WrongClaims"),
    "output detached": (TORCH, output_detached, "OutputRequiresGrad"),
    "v1 module shared by two linears": (V1, v1_modules_shared, "StateObjectShared"),
    "another gelu": (TORCH, compiles(LINEAR, Activation(function="gelu_tanh")), "OutputDiffers"),
    "a norm too many": (TORCH, compiles(LINEAR, Activation(function="gelu"), LayerNorm()), "SubjectRaised"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_v1 if PATCHES[name][0] is V1 else ()) for name in PATCHES]
)
def test_wrong_code_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, apply, expected = PATCHES[name]
    assert silent_without_error(case)
    apply(monkeypatch)
    found = run_case(case).findings
    assert kinds(found)[:1] == [expected], [str(finding) for finding in found]


def test_a_swapped_gradient_is_found_in_both_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_gradients_swapped(monkeypatch)
    messages = [finding.message for finding in run_case(TWO).findings]
    assert [message.split(":")[0] for message in messages] == [
        "step 0, gradient of 0.weight",
        "step 0, gradient of 1.weight",
    ]


# Observations edited


def gradients(change: Mapping[str, Any]) -> Edit:
    return edit_step(1, lambda step: {"parameter_gradients": {**step.parameter_gradients, **change}})


def step_fields(**fields: Any) -> Edit:
    return edit_step(1, lambda step: fields)


def output_changed(value: float) -> Edit:
    def change(step: StepObservation) -> dict[str, Any]:
        output = step.outputs[0].clone()
        output[3, 5] = value
        return {"outputs": (output,)}

    return edit_step(1, change)


def state_lost(tensor: str) -> Edit:
    def change(step: StepObservation) -> dict[str, Any]:
        return {
            "fp8_state": {
                path: {name: state for name, state in states.items() if name != tensor}
                for path, states in step.fp8_state.items()
            }
        }

    return edit_step(1, change)


def input_gradient_transposed(step: StepObservation) -> dict[str, Any]:
    assert step.input_gradient is not None
    return {"input_gradient": step.input_gradient.T}


def last_step_lost(observation: Observation) -> None:
    observation.steps.pop()


STATES: dict[str, tuple[Case, Edit, str]] = {
    "gradient None": (ONE, gradients({"0.bias": None}), "GradientMissing"),
    "gradient of zeros": (ONE, gradients({"0.weight": torch.zeros(32, 32)}), "GradientDiffers"),
    "gradient of another dtype": (ONE, gradients({"0.bias": torch.zeros(32, dtype=torch.bfloat16)}), "GradientDiffers"),
    "input gradient None": (ONE, step_fields(input_gradient=None), "GradientMissing"),
    "input gradient transposed": (ONE, edit_step(1, input_gradient_transposed), "GradientDiffers"),
    "NaN in the output": (ONE, output_changed(float("nan")), "OutputDiffers"),
    "NaN in the output without TE": (TORCH, output_changed(float("nan")), "OutputDiffers"),
    "output off": (TORCH, output_changed(0.01), "OutputDiffers"),
    "output without grad": (TORCH, step_fields(outputs_require_grad=(False,)), "OutputRequiresGrad"),
    "input changed": (TORCH, step_fields(input_unchanged=False), "InputChanged"),
    "FP8 state lost": (ONE, state_lost("grad_output"), "StateMissing"),
    "step lost": (ONE, last_step_lost, "StepMissing"),
}


@pytest.mark.parametrize("name", STATES)
def test_wrong_observations_are_found(name: str) -> None:
    case, edit, expected = STATES[name]
    assert silent_without_error(case)
    found = observe(case, edit)[0].findings
    assert kinds(found)[:1] == [expected], [str(finding) for finding in found]
    assert "step 1" in found[0].message or expected == "StepMissing"


# Traces edited


def in_trace(which: str, change: Callable[[list[Any]], None]) -> Edit:
    """Change the bound symbols of a final trace."""

    def edit(observation: Observation) -> None:
        compilation = observation.compilations[0]
        change(getattr(compilation, which)[-1].bound_symbols)

    return edit


def in_earlier_trace(change: Callable[[list[Any]], None], made_by: str) -> Edit:
    """Change the bound symbols of the first forward trace that a pass made, and leave the later ones right."""

    def edit(observation: Observation) -> None:
        traces = observation.compilations[0].forward
        change(next(trace for trace in traces if pass_name(trace) == made_by).bound_symbols)

    return edit


def index_of(symbols: list[Any], wanted: Callable[[Any], bool], *, after: int = -1) -> int:
    return next(i for i, bsym in enumerate(symbols) if i > after and wanted(bsym))


def is_linear(bsym: Any) -> bool:
    return bool(bsym.sym.name == LINEAR_FORWARD)


def takes(bsym: Any, name: str) -> bool:
    return any(proxy.name == name for proxy in bsym.flat_proxy_args)


def linear_computed_twice(symbols: list[Any]) -> None:
    index = index_of(symbols, lambda bsym: bsym.sym.name == "linear")
    symbols.insert(index + 1, symbols[index])


def random_operation_lost(observation: Observation) -> None:
    symbols = observation.compilations[0].forward[-2].bound_symbols
    del symbols[index_of(symbols, lambda bsym: bsym.sym.name == "uniform")]


def linear_defined_last(symbols: list[Any]) -> None:
    index = index_of(symbols, lambda bsym: bsym.sym.name == "linear")
    symbols.insert(len(symbols) - 1, symbols.pop(index))


def deleting_at_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """Deletes what the first linear gives right after it."""

    def delete(symbols: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(symbols, *args, **kwargs)
        computed = [bsym for bsym in result if bsym.sym.name == "linear" and bsym.flat_proxy_outs]
        if computed:
            deletion = prims.python_del.bind(*computed[0].flat_proxy_outs, output=None)
            result.insert(result.index(computed[0]) + 1, deletion)
        return result

    return delete


def quantizers_asked_twice(symbols: list[Any]) -> None:
    index = index_of(symbols, lambda bsym: bsym.sym.name.startswith("get_te_fp8_quantizers_"))
    symbols.insert(index + 1, symbols[index])


def quantizer_of_the_first_linear(symbols: list[Any]) -> None:
    first = index_of(symbols, is_linear)
    second = index_of(symbols, is_linear, after=first)
    x, weight, bias, _, weight_quantizer = symbols[second].args
    symbols[second] = symbols[second].from_bsym(
        args=(x, weight, bias, symbols[first].args[3], weight_quantizer), kwargs={}
    )


def deleted_too_early(symbols: list[Any]) -> None:
    second = index_of(symbols, is_linear, after=index_of(symbols, is_linear))
    x = symbols[second].args[0].name
    deletion = index_of(symbols, lambda bsym: bsym.sym.id == prims.PrimIDs.DEL and takes(bsym, x), after=second)
    symbols.insert(second, symbols.pop(deletion))


def defined_too_late(symbols: list[Any]) -> None:
    linear = index_of(symbols, is_linear)
    quantizer = symbols[linear].args[3].name
    producer = index_of(symbols, lambda bsym: any(proxy.name == quantizer for proxy in bsym.flat_proxy_outs))
    symbols.insert(linear, symbols.pop(producer))


def state_of_the_first_linear(symbols: list[Any]) -> None:
    def is_state(bsym: Any) -> bool:
        return bool(bsym.sym.name.startswith("get_te_fp8_state_"))

    first = index_of(symbols, is_state)
    second = symbols[index_of(symbols, is_state, after=first)]
    second._call_ctx = {second.sym.name: state_object(symbols[first])}


def backward_computes_a_forward_name(observation: Observation) -> None:
    compilation: Compilation = observation.compilations[0]
    forward = compilation.forward[-1].bound_symbols
    taken = forward[index_of(forward, is_linear)].flat_proxy_outs[0]
    backward = compilation.backward[-1].bound_symbols
    last = index_of(backward, lambda bsym: bsym.sym.name.startswith("te_functional_linear_bwd"))
    backward[last] = backward[last].from_bsym(output=(taken, backward[last].flat_proxy_outs[1]))


def backward_asks_for_the_forward_state(observation: Observation) -> None:
    compilation: Compilation = observation.compilations[0]
    forward = compilation.forward[-1].bound_symbols
    state = forward[index_of(forward, lambda bsym: bsym.sym.name.startswith("get_te_fp8_state_"))]
    backward = compilation.backward[-1].bound_symbols
    first = index_of(backward, lambda bsym: bsym.sym.name.startswith("get_te_fp8_state_"))
    # Under the name that the backward trace has, so that nothing else is wrong.
    backward[first] = state.from_bsym(args=backward[first].args, output=backward[first].output)


def saved_in_another_order(observation: Observation) -> None:
    trace = observation.compilations[0].forward[-1]
    output, (tensors, others) = trace.output
    trace.bound_symbols[-1] = trace.bound_symbols[-1].from_bsym(args=(output, (tensors[::-1], others)))


def saved_for_nothing(observation: Observation) -> None:
    symbols = observation.compilations[0].backward[-1].bound_symbols
    del symbols[index_of(symbols, lambda bsym: bsym.sym.name == "te_functional_linear_bwd") :]


def weight_of_another_shape(symbols: list[Any]) -> None:
    index = index_of(symbols, lambda bsym: bsym.sym.name == "linear")
    x, _, bias = symbols[index].args
    symbols[index] = symbols[index].from_bsym(args=(x, bias, bias))


TRACES: dict[str, tuple[Case, Edit, str]] = {
    "name computed twice": (TORCH, in_trace("forward", linear_computed_twice), "NameComputedTwice"),
    "stateful symbol bound twice": (ONE, in_trace("forward", quantizers_asked_twice), "StatefulSymbolShared"),
    "quantizer shared": (TWO, in_trace("forward", quantizer_of_the_first_linear), "QuantizerShared"),
    "state object shared": (TWO, in_trace("forward", state_of_the_first_linear), "StateObjectShared"),
    "used after deletion": (TWO, in_trace("forward", deleted_too_early), "UsedAfterDeletion"),
    "used before definition": (ONE, in_trace("forward", defined_too_late), "UsedBeforeDefinition"),
    "name in both traces": (ONE, backward_computes_a_forward_name, "NameInBothTraces"),
    "random operation lost": (DROPOUT, random_operation_lost, "RandomOperationsCounted"),
    "saved in another order": (ONE, saved_in_another_order, "SavedForBackwardDiffers"),
    "saved for nothing": (ONE, saved_for_nothing, "SavedNeedlessly"),
    "shape that does not fit": (SAMPLED, in_trace("forward", weight_of_another_shape), "TraceRefused"),
    "state asked again": (ONE, backward_asks_for_the_forward_state, "StateAskedAgain"),
}


@pytest.mark.parametrize("name", TRACES)
def test_wrong_traces_are_found(name: str) -> None:
    case, edit, expected = TRACES[name]
    assert silent_without_error(case)
    found = observe(case, edit)[0].findings
    assert kinds(found)[:1] == [expected], [str(finding) for finding in found]


def test_the_first_trace_that_is_wrong_is_named() -> None:
    symbols_of_joint = in_earlier_trace(linear_defined_last, "Grad transform pass")
    found = observe(TORCH, symbols_of_joint)[0].findings
    assert [(finding.check, finding.bucket.where) for finding in found] == [
        ("used before definition", "Grad transform pass")
    ]
    assert "after the pass 'Grad transform pass'" in found[0].message


def test_traces_of_a_step_that_raises_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is one of Python's, about a name of the generated code; the trace says which pass it was."""
    monkeypatch.setattr(passes, "_del_last_used", deleting_at_once(passes._del_last_used))
    found = run_case(TORCH).findings
    assert [finding.check for finding in found] == ["used after deletion", "exception"]
    assert found[0].bucket.where == "Delete Last Used"
    assert "UnboundLocalError" in found[1].message


def states_outlive_their_model(patch: Patch) -> None:
    """The states of a second model are those of the first: one forward and one backward state for a single linear."""
    kept: list[dict[str, Any]] = [{"state": None, "parent_recipe": None} for _ in range(2)]
    made = count()

    def state(self: Any) -> None:
        self.__dict__ = kept[next(made) % 2]

    patch.setattr(v2.TERecipeState, "__init__", state)
    patch.setattr(precision, "make_recipe", lru_cache(precision.make_recipe))


def test_what_the_first_run_leaves_is_found_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is right. Seed 7 is in the sample of one case in six."""
    case = replace(ONE, seed=7)
    assert silent_without_error(case)
    states_outlive_their_model(monkeypatch)
    assert [finding.check for finding in run_case(case).findings] == ["repeated run"]


def test_buckets_do_not_depend_on_place_or_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking keeps the bucket, so a bucket may not name what shrinking changes."""
    weight_gradients_swapped(monkeypatch)
    plain = run_case(TWO).findings[0].bucket
    wide = replace(
        TWO,
        layers=(Activation(), *TWO.layers),
        input=replace(GIVEN, batch=(2, 16)),
        seed=5,
    )
    other = run_case(wide).findings[0].bucket
    assert plain == other
    assert str(plain) == "gradient/backward/Linear.weight/thunder-with-TE-v2/DelayedScaling"


def test_a_finding_reads_well(monkeypatch: pytest.MonkeyPatch) -> None:
    nan_in_the_output(monkeypatch)
    finding = run_case(ONE).findings[0]
    text = str(finding)
    assert text.startswith("step 0, output: 1 of 512 elements differ; at [0, 0]: nan against ")
    for part in ("bucket: output/train/output/", "Linear(32→32)", ONE.id, "[16, 32] float32", "2 steps"):
        assert part in text


def test_a_replaced_observation_is_another_one() -> None:
    """Edits must not reach the run of another test."""
    step = observe(ONE)[1][0].steps[0]
    assert replace_fields(step, input_unchanged=False) != step
    assert silent_without_error(ONE)
