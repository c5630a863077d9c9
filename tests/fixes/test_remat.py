"""The remat fix: which models show its absence, under which executor, by which findings."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from thunder.executors import transformer_engineex
from torch.utils.checkpoint import checkpoint

from harness.case import Activation, AnyLayer, Checkpoint, Executor
from harness.fixes import reverted
from harness.traces import computed_names
from tests.fixes.cases import findings, jit_case, kinds, linear

pytestmark = pytest.mark.filterwarnings("ignore")  # Thunder's own

NAME_FINDINGS = {"NameInBothTraces", "NameComputedTwice", "UsedBeforeDefinition", "UsedAfterDeletion"}
EXPECTED = {"remat": "NameInBothTraces", "remat-names": "NameComputedTwice"}
RELU = Activation()
# torch's backward of relu takes its result, so a checkpoint that ends in relu leaves the torch executor nothing to
# recompute; TE's linears save what they quantised.
SHOWS: dict[str, tuple[Executor, tuple[AnyLayer, ...]]] = {
    "torch": ("torch", (Checkpoint(body=(linear(), RELU, linear())),)),
    "v1": ("transformer_engine_v1", (Checkpoint(body=(linear(), RELU)), linear())),
    "v2": ("transformer_engine", (Checkpoint(body=(linear(), RELU)), linear())),
}
SHOWS_NOTHING: dict[str, tuple[AnyLayer, ...]] = {
    "no checkpoint": (linear(), RELU, linear()),
    "identity in a checkpoint": (Checkpoint(body=()), linear()),
    "linear alone in a checkpoint": (Checkpoint(body=(linear(),)),),
}


@pytest.mark.parametrize(
    "model",
    ["torch", pytest.param("v1", id="transformer_engine_v1"), pytest.param("v2", id="transformer_engine_v2")],
)
def test_shared_names_are_found(model: str) -> None:
    executor, layers = SHOWS[model]
    case = jit_case(*layers, executor=executor, steps=2)
    with_fix = kinds(findings(case))
    assert not with_fix & NAME_FINDINGS
    # v1 re-runs its linear in backward with newer scales, which gives other gradients: a finding of its own.
    assert with_fix == set() or executor == "transformer_engine_v1"
    for revert, expected in EXPECTED.items():
        found = findings(case, revert)
        assert type(found[0]).__name__ == expected
        assert kinds(found) & NAME_FINDINGS == {expected}
        others = {"StateAskedAgain", "SavedNeedlessly"}
        assert kinds(found) - NAME_FINDINGS <= with_fix | others, "names are wrong, numbers are not"


@pytest.mark.parametrize("executor", ["torch", "transformer_engine", "transformer_engine_v1"])
@pytest.mark.parametrize("model", SHOWS_NOTHING)
def test_nothing_to_recompute_shows_nothing(model: str, executor: Executor) -> None:
    case = jit_case(*SHOWS_NOTHING[model], executor=executor)
    assert findings(case, "remat") == ()


def test_smallest_model() -> None:
    assert _overlap() == set()
    with reverted(["remat"]):
        assert len(_overlap()) == 1, "cos is recomputed, sin is the output"


def test_gradients_stay_right() -> None:
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.sin(torch.cos(x)).sum(), x)
    for revert in ("remat", "remat-names"):
        with reverted([revert]):
            (gradient,) = torch.autograd.grad(_jitted()(x).sum(), x)
        torch.testing.assert_close(gradient, expected)


def test_state_asked_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engineex, "_te_activation_checkpointing_transform", lambda trace: trace)
    case = jit_case(*SHOWS["v2"][1], executor="transformer_engine")
    assert "StateAskedAgain" in kinds(findings(case))


def _jitted() -> Any:
    return thunder.jit(
        lambda x: checkpoint(lambda y: torch.sin(torch.cos(y)), x, use_reentrant=False),
        executors=[thunder.pytorch_executor],
    )


def _overlap() -> set[str]:
    jitted = _jitted()
    jitted(torch.ones(4, requires_grad=True))
    forward, backward = (
        {name for bsym in traces[-1].bound_symbols for name in computed_names(bsym)}
        for traces in (thunder.last_traces(jitted), thunder.last_backward_traces(jitted))
    )
    return forward & backward
