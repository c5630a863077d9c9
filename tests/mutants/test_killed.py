"""A few mutants on cases made by hand: each is found by the check that is meant for it, and the case is silent else."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

import pytest
from packaging.version import Version

from harness.case import (
    Activation,
    Case,
    Checkpoint,
    DelayedScaling,
    Float8CurrentScaling,
    Fuser,
    GatedActivation,
    Input,
    Jit,
    LayerNorm,
    Linear,
    Precision,
    Residual,
    Step,
    replace,
)
from harness.device import activate
from harness.judge import Judge
from harness.mutants import applied

activate()

LINEAR = Linear(out_features=64)
GIVEN = Input(requires_grad=True)
V2 = Case(layers=(LINEAR,), input=GIVEN, steps=(Step(), Step()), jit=Jit(entry="function"))
FX = replace(V2, jit=Jit(entry="thunderfx"))
GRAD = replace(V2, layers=(LINEAR, LINEAR, LINEAR), jit=Jit(entry="grad"))
V1 = replace(V2, jit=Jit(executor="transformer_engine_v1", entry="function"))
TORCH = replace(V2, jit=Jit(executor="torch", entry="function"), precision=Precision(recipe=None))
REGION = replace(TORCH, layers=(Checkpoint(body=(Activation(function="gelu_tanh"), LINEAR)),))
PIPELINE = replace(
    V2, layers=(LayerNorm(), LINEAR), jit=None, fuser=Fuser(hide_parameters="never"), precision=TORCH.precision
)
SAMPLED = replace(TORCH, seed=1)
# Seed 11 is in the samples of one case in 2 and of one in 5.
FP8_PIPELINE = replace(
    PIPELINE, layers=(Linear(out_features=64, bias=False),) * 2, fuser=Fuser(), precision=Precision(), seed=11
)
SCALED = replace(
    FP8_PIPELINE,
    layers=FP8_PIPELINE.layers[:1],
    input=Input(distribution="small"),
    precision=Precision(recipe=Float8CurrentScaling()),
)

needs_v1 = pytest.mark.skipif(
    Version(importlib.metadata.version("transformer_engine")) >= Version("2.10"),
    reason="Thunder's v1 executor needs a TE before 2.10",
)


@dataclass(frozen=True)
class Killed:
    mutant: str
    case: Case
    check: str


KILLED = (
    Killed("v2-bias-lost", V2, "output"),
    Killed("v2-checker-first-dimension", replace(V2, input=Input(batch=(2, 8), requires_grad=True)), "claims"),
    Killed("vjp-cache-flag-ignored", GRAD, "stateful symbol"),
    Killed(
        "state-margin-multiplied", replace(V2, precision=Precision(recipe=DelayedScaling(margin=1))), "fp8 scale rule"
    ),
    Killed("state-shared-amax", V2, "fp8 quantizer rule"),
    Killed("state-shared-scale", V2, "fp8 quantizer rule"),
    Killed("state-gradients-in-e4m3", V2, "fp8 format rule"),
    Killed("ops-layer-norm-gradients-swapped", PIPELINE, "gradient"),
    Killed("grad-slice-padding-swapped", replace(TORCH, layers=(GatedActivation(),)), "gradient"),
    Killed("autodiff-checkpoint-not-recomputed", REGION, "recomputation"),
    Killed("guard-ignores-requires-grad", replace(V2, steps=(Step(), Step(trainable="none"))), "fp8 amax history"),
    Killed(
        "trace-context-survives-exception",
        replace(V2, steps=(Step(), Step(wrong_input=True), Step())),
        "fp8 amax history",
    ),
    Killed("ops-quantised-with-grad-only", FP8_PIPELINE, "output without grad"),
    Killed("ops-frozen-weight-shares-quantizer", FP8_PIPELINE, "frozen parameter"),
    Killed("current-scaling-amax-floor", SCALED, "scaled input"),
    Killed("cache-never-hits", TORCH, "compiled again"),
    Killed("autograd-keeps-saved-tensors", SAMPLED, "state growth"),
    Killed("autocast-key-by-object", replace(V2, seed=1), "state growth"),
    Killed("split-saved-reversed", TORCH, "saved for backward"),
    Killed("split-saves-arguments", TORCH, "saved needlessly"),
    Killed("dce-first-output-only", replace(V2, input=Input()), "used before definition"),
    Killed("thunderfx-outputs-without-grad", FX, "fp8 state missing"),
    Killed("thunderfx-without-builtins", replace(FX, layers=(Residual(body=(LINEAR,)),)), "graph split"),
    Killed("thunderfx-checkpoint-drops-texts", replace(FX, layers=REGION.layers), "fp8 amax history"),
    Killed("cse-keeps-parts", replace(V2, layers=(LINEAR, Linear(out_features=20)), seed=1), "check_trace"),
)
NEED_V1 = (Killed("v1-bias-lost", V1, "output"),)
PARAMETERS = [*KILLED, *(pytest.param(killed, marks=needs_v1) for killed in NEED_V1)]


def found(case: Case) -> str | None:
    finding = Judge.of(activate()).first_unexplained(case)
    return None if finding is None else finding.check


@pytest.mark.parametrize("killed", PARAMETERS, ids=lambda killed: killed.mutant)
def test_found_with_the_mutant_and_silent_without(killed: Killed) -> None:
    assert found(killed.case) is None
    with applied(killed.mutant):
        assert found(killed.case) == killed.check
    assert found(killed.case) is None
