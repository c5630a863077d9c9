"""``run_case``: every way to run a case works, and a verdict depends on nothing but the case."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from thunder.core import vjp_utils
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

from harness import fp8_globals
from harness.build import make_parameters
from harness.case import (
    Activation,
    Case,
    Checkpoint,
    Executor,
    Float8CurrentScaling,
    Fuser,
    Input,
    Jit,
    LayerNorm,
    Linear,
    Precision,
    Residual,
    Step,
    pretty_json,
    replace,
)
from harness.fingerprint import tensors
from harness.run import PAIRS, pair_name, reset_global_state, run_case
from harness.subjects.base import Observation, Subject
from tests.observed import V1_WORKS, digest, observe

ROOT = Path(__file__).parent.parent
LINEAR = Linear(out_features=32)
GIVEN = Input(batch=(16,), features=32, requires_grad=True)
STEPS = (Step(), Step())
V2 = Case(layers=(LINEAR, Activation(), LINEAR), input=GIVEN, steps=STEPS)
V1 = replace(V2, jit=Jit(executor="transformer_engine_v1"))
TORCH = replace(V2, layers=(LayerNorm(), LINEAR, Activation(function="gelu")), jit=Jit(executor="torch"))
FUSER = replace(V2, layers=(LayerNorm(), LINEAR, Activation(), LINEAR), jit=None, fuser=Fuser())
TE_OPS = replace(FUSER, fuser=Fuser(hide_parameters="never"), precision=Precision(recipe=None))
CASES = {"v2": V2, "v1": V1, "torch": TORCH, "fuser": FUSER, "te_ops": TE_OPS}

needs_v1 = pytest.mark.skipif(not V1_WORKS, reason="Thunder's v1 executor needs a TE before 2.10")


@pytest.mark.parametrize("name", ["v2", pytest.param("v1", marks=needs_v1), "torch", "fuser", "te_ops"])
def test_every_way_of_running_a_case(name: str) -> None:
    case = CASES[name]
    verdict, (subject, reference) = observe(case)
    assert verdict.findings == ()
    assert verdict.refusal is None
    assert [type(side) for side in (subject, reference)] == [Observation, Observation]
    assert (subject.subject, reference.subject) == tuple(kind.name for kind in PAIRS[pair_name(case)])
    assert verdict.te_linears == (2 if name in ("v1", "v2") else 0)
    assert set(verdict.seconds) == {"subject", "reference", "checks", "follow-ups"}
    assert all(seconds > 0 for seconds in verdict.seconds.values())
    for side in (subject, reference):
        assert side.failure is None
        assert len(side.steps) == len(case.steps)
        for step in side.steps:
            assert step.input_unchanged
            assert step.outputs_require_grad == (True,)
            assert step.input_gradient is not None
            assert set(step.parameter_gradients) == set(make_parameters(case))
            assert None not in step.parameter_gradients.values()
        first, second = side.steps
        assert not torch.equal(first.outputs[0], second.outputs[0]), "every step has data of its own"
        if name not in ("torch", "te_ops"):
            assert set(first.fp8_state) == {str(i) for i, layer in enumerate(case.layers) if layer == LINEAR}
            for states in second.fp8_state.values():
                assert set(states) == {"input", "weight", "grad_output"}
                assert all(bool(state.amax_history.any()) for state in states.values())
                assert all(float(state.scale) != 1 for state in states.values())
    assert len(subject.compilations) == (0 if name in ("fuser", "te_ops") else 1)


def test_the_two_te_paths_agree_with_torch_within_fp8() -> None:
    """No side of a pair may be right by being empty: FP8 is near the float32 result and not equal to it."""
    plain = observe(replace(V2, jit=Jit(executor="torch")))[1][1].steps[0]
    for case in (V2, *([V1] if V1_WORKS else [])):
        for side in observe(case)[1]:
            for ours, theirs in (
                (side.steps[0].outputs[0], plain.outputs[0]),
                (side.steps[0].input_gradient, plain.input_gradient),
            ):
                assert ours is not None
                assert theirs is not None
                error = float((ours - theirs).norm() / theirs.norm())
                assert 1e-4 < error < 0.3


def test_modes_and_specialisations() -> None:
    steps = (Step(), Step(mode="no_grad"), Step(mode="eval"), Step(batch=(32,)), Step())
    case = replace(V2, steps=steps)
    verdict, (subject, reference) = observe(case)
    assert verdict.findings == ()
    for side in (subject, reference):
        assert [step.outputs_require_grad for step in side.steps] == [(True,), (False,), (False,), (True,), (True,)]
        assert [step.input_gradient is None for step in side.steps] == [False, True, True, False, False]
        assert [len(step.outputs[0]) for step in side.steps] == [16, 16, 16, 32, 16]
        assert [bool(step.fp8_state) for step in side.steps] == [True, False, False, True, True]
    assert [compilation.step for compilation in subject.compilations] == [0, 1, 2, 3]
    assert verdict.te_linears == 4


@pytest.mark.parametrize("cache", ["constant values", "no caching"])
@pytest.mark.parametrize("entry", ["module", "function"])
def test_jit_settings(entry: str, cache: str) -> None:
    case = replace(V2, jit=Jit(entry=entry, cache=cache))  # type: ignore[arg-type]
    verdict, (subject, _) = observe(case)
    assert verdict.findings == ()
    assert len(subject.compilations) == (1 if cache == "constant values" else 2)


@pytest.mark.parametrize("executor", ["transformer_engine", "torch"])
def test_where_te_does_not_run(executor: Executor) -> None:
    for change in ({"precision": Precision(recipe=Float8CurrentScaling())}, {"input": Input(batch=(17,), features=36)}):
        verdict = run_case(replace(V2, jit=Jit(executor=executor), **change))
        assert verdict.findings == ()
        assert verdict.te_linears == 0


def test_both_sides_may_refuse_a_case_alike() -> None:
    """8 rows pass TE's check and are refused by the GEMM of the weight gradient."""
    verdict = run_case(replace(V2, input=Input(batch=(8,), features=32)))
    assert verdict.findings == ()
    assert verdict.refusal is not None
    assert verdict.refusal.startswith("backward of step 0: RuntimeError: ")


def test_raise_first() -> None:
    verdict = run_case(V2)
    verdict.raise_first()
    found = observe(V2, lambda observation: observation.steps.pop() and None)[0]
    assert found.findings
    with pytest.raises(type(found.findings[0])):
        found.raise_first()


def test_a_frozen_model_has_no_gradients() -> None:
    layer = Linear(out_features=32, frozen=("weight", "bias"))
    case = replace(V2, layers=(layer,), input=Input(batch=(16,), features=32))
    verdict, sides = observe(case)
    assert verdict.findings == ()
    for side in sides:
        assert {*side.steps[0].parameter_gradients.values(), side.steps[0].input_gradient} == {None}
        assert side.steps[0].outputs_require_grad == (False,)


def dirty_the_process() -> None:
    """What an earlier case, or a user's own code, may leave behind."""
    vjp_utils._cache[("linear", "leftover")] = object()
    FP8GlobalStateManager.FP8_ENABLED = True
    FP8GlobalStateManager.global_amax_buffer["leftover"] = [torch.ones(1)]
    torch.set_grad_enabled(False)
    torch.manual_seed(99)


def test_global_state_is_reset() -> None:
    expected = digest(V2)
    dirty_the_process()
    reset_global_state()
    assert not vjp_utils._cache
    assert not FP8GlobalStateManager.is_fp8_enabled()
    assert not FP8GlobalStateManager.global_amax_buffer
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state())
    dirty_the_process()
    assert digest(V2) == expected
    reset_global_state()


def test_a_users_fp8_globals_are_its_own() -> None:
    own, other = fp8_globals.OwnFp8Globals(), fp8_globals.OwnFp8Globals()
    fp8_globals.reset()
    FP8GlobalStateManager.global_amax_buffer["outside"] = []
    with own.active():
        assert FP8GlobalStateManager.global_amax_buffer == {}
        FP8GlobalStateManager.global_amax_buffer["own"] = []
        FP8GlobalStateManager.FP8_ENABLED = True
    with other.active():
        assert FP8GlobalStateManager.global_amax_buffer == {}
        assert not FP8GlobalStateManager.FP8_ENABLED
    with suppress(KeyError), own.active():
        assert list(FP8GlobalStateManager.global_amax_buffer) == ["own"]
        raise KeyError
    assert list(FP8GlobalStateManager.global_amax_buffer) == ["outside"]
    assert not FP8GlobalStateManager.FP8_ENABLED
    fp8_globals.reset()


# Two equal linears and a region: what Thunder's caches would confuse with V2's.
OTHER = replace(V2, layers=(LINEAR, LINEAR, Residual(body=(Checkpoint(body=(LINEAR, Activation())),))))


def test_a_verdict_depends_on_nothing_but_the_case(tmp_path: Path) -> None:
    """Alone, after itself, after others, in another order and in another process: the same verdict, bit for bit."""
    cases = (V2, FUSER, *([V1] if V1_WORKS else []), OTHER)
    here = [digest(case) for case in cases]
    assert len(set(here)) == len(cases)
    assert [digest(case) for case in (cases[0], *reversed(cases))] == [here[0], *reversed(here)]
    paths = []
    for index, case in enumerate(reversed(cases)):
        paths.append(str(tmp_path / f"{index}.json"))
        Path(paths[-1]).write_text(pretty_json(case))
    done = subprocess.run(
        [sys.executable, "-m", "tests.observed", *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == here[::-1]


@pytest.mark.parametrize("executor", ["transformer_engine", "torch"])
def test_the_grad_entry_gives_all_gradients_and_no_output(executor: Executor) -> None:
    """``thunder.core.transforms.grad``: two steps, so that FP8 scales of gradients count."""
    jit = Jit(executor=executor, entry="grad")
    case = Case(layers=(LINEAR, LINEAR), input=GIVEN, steps=(Step(), Step()), jit=jit)
    verdict, sides = observe(case)
    for side in sides:
        assert side.failure is None
        for step in side.steps:
            assert step.outputs == ()
            assert all(gradient is not None for gradient in (step.input_gradient, *step.parameter_gradients.values()))
    assert verdict.findings == ()
    assert (verdict.te_linears > 0) == (executor == "transformer_engine")


def test_an_interrupt_that_a_subject_wraps_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thunder's tracing turns Ctrl-C into an InterpreterError: no finding."""

    def interrupted(self: Subject) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("as Thunder does while it traces") from error

    monkeypatch.setattr(PAIRS[pair_name(V2)][0], "prepare", interrupted)
    # A shell starts what runs in its background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_case(V2)
    finally:
        signal.signal(signal.SIGINT, before)


def test_values_out_of_range_are_counted_and_not_compared() -> None:
    """Five squares of large values overflow float32, and float64, the arbiter, does not."""
    squares = (Activation(function="squared_relu"),) * 5
    case = Case(layers=squares, input=replace(GIVEN, distribution="large"), jit=Jit(executor="torch"))
    verdict = run_case(case)
    assert verdict.findings == ()
    assert verdict.refusal == "no comparison: values overflow float32"
    assert run_case(replace(case, layers=squares[:1])).refusal is None


def test_every_executor_has_a_pair() -> None:
    for case in (V2, V1, TORCH, FUSER):
        subject, reference = PAIRS[pair_name(case)]
        assert issubclass(subject, Subject)
        assert issubclass(reference, Subject)
        assert subject.name != reference.name


def test_digests_differ_by_a_bit() -> None:
    """The test above could not fail if the digest left something out."""
    first, second = (dict(tensors(side)) for side in observe(V2)[1])
    assert set(first) == set(second)
    assert {key.split()[1] for key in first} == {"output", "gradient", "scale", "amax"}
    assert digest(replace(V2, seed=1)) != digest(V2)
