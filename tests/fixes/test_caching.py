"""The caching fix: which models show its absence, by which findings, from which step on."""

from __future__ import annotations

import pytest
from thunder.core import prims, vjp_utils
from thunder.transforms import autodiff

from harness.case import AnyLayer, Executor
from harness.checks.outputs import OutputDiffers
from harness.fixes import caching
from harness.fixes.patching import attribute
from tests.fixes.cases import findings, jit_case, kinds, linear

EXECUTORS: tuple[Executor, ...] = ("transformer_engine", "transformer_engine_v1")
# A hit needs equal shapes and equal requires_grad flags of all arguments. The first linear of a model gets the flag of
# the input, all others that of an intermediate.
SHOWS: dict[str, tuple[tuple[AnyLayer, ...], bool]] = {
    "64-64-64": ((linear(), linear()), False),
    "64-64-64-64, input with grad": ((linear(), linear(), linear()), True),
    "64-128-64-128-64": ((linear(128), linear(), linear(128), linear()), False),
}
SHOWS_NOTHING: dict[str, tuple[tuple[AnyLayer, ...], bool]] = {
    "64-64": ((linear(),), False),
    "64-128-64": ((linear(128), linear()), False),
    "64-64-64, input with grad": ((linear(), linear()), True),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("model", SHOWS)
def test_shared_state_is_found(model: str, executor: Executor) -> None:
    layers, input_grad = SHOWS[model]
    case = jit_case(*layers, executor=executor, input_grad=input_grad, steps=3)
    assert findings(case) == ()
    found = findings(case, "caching")
    assert found[0].bucket.check == "stateful symbol"
    assert {"StatefulSymbolShared", "AmaxHistoryDiffers", "ScaleDiffers"} <= kinds(found)
    # v2's final traces show no shared symbol, only linears with one quantizer.
    assert ("QuantizerShared" in kinds(found)) == (executor == "transformer_engine")
    # Scales are delayed: the first step is right.
    assert [f.message.split(",")[0] for f in found if isinstance(f, OutputDiffers)] == ["step 1"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("model", SHOWS_NOTHING)
def test_unequal_linears_do_not_share(model: str, executor: Executor) -> None:
    layers, input_grad = SHOWS_NOTHING[model]
    case = jit_case(*layers, executor=executor, input_grad=input_grad, steps=2)
    assert findings(case, "caching") == ()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_route_through_the_cache_alone_changes_nothing(executor: Executor) -> None:
    case = jit_case(linear(), linear(), executor=executor, input_grad=False, steps=2)
    with attribute(autodiff, "_get_gradfn_and_executor", caching._rule_through_cache):
        assert findings(case) == ()


def test_the_cache_is_given_back() -> None:
    before, cache = dict(vjp_utils._cache), vjp_utils._cache
    cache["entry"] = prims.linear
    with caching.cached_rules():
        assert cache == {}
        cache["another"] = prims.linear
    assert vjp_utils._cache is cache
    assert cache == before | {"entry": prims.linear}
    del cache["entry"]
    assert "getattr" not in vars(vjp_utils)
