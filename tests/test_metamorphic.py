"""Relations whose violations no mutant shows: one that is broken on purpose, and the sound case in silence."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
from thunder.core.proxies import variableify
from thunder.core.trace import from_trace

from harness import growth
from harness.case import Activation, Case, CaseError, Input, Jit, Linear, Step, parse_case
from harness.device import activate
from harness.metamorphic import FurtherTransforms
from harness.run import run_case
from harness.sample import in_sample
from harness.subjects import thunder_jit

activate()

LINEAR = Linear(out_features=64)
CASES = [
    Case(
        layers=(LINEAR, Activation(function="gelu"), LINEAR),
        input=Input(requires_grad=True),
        steps=(Step(), Step()),
        jit=Jit(entry="function"),
        seed=seed,
    )
    for seed in range(200)
]
SAMPLE = [
    case for case in CASES if in_sample(case, FurtherTransforms.one_in) and not in_sample(case, growth.ONE_CASE_IN)
]
BOTH_ORDERS = [next(case for case in SAMPLE if case.seed // 8 % 2 == order) for order in (0, 1)]


class SecondLinearFirst(thunder.Transform):  # type: ignore[misc]  # Thunder is not typed
    """A transform that is not neutral: the second linear has the weight of the first one."""

    def transform_traces_pre_prologue(self, prologue: Any, computation: Any, epilogue: Any, **_: Any) -> Any:
        changed = from_trace(computation)
        first, second = (bsym for bsym in computation.bound_symbols if bsym.sym.name == "linear")
        swap = {variableify(second.args[1]): first.args[1]}
        for bsym in computation.bound_symbols:
            changed.bound_symbols.append(bsym.from_bsym_swap_proxies(swap) if bsym is second else bsym)
        return prologue, changed, epilogue


@pytest.mark.parametrize("case", BOTH_ORDERS, ids=["dead code first", "constants first"])
def test_further_transforms_change_nothing(case: Case) -> None:
    follow_up = FurtherTransforms().follow_up(case)
    assert follow_up is not None
    assert follow_up.jit is not None
    assert follow_up.jit.transforms.index("transformer_engine") == 1
    assert run_case(case).findings == ()
    assert run_case(follow_up).findings == ()
    assert FurtherTransforms().follow_up(follow_up) is None


@pytest.mark.parametrize("case", BOTH_ORDERS, ids=["dead code first", "constants first"])
def test_a_transform_that_changes_something_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(thunder_jit.TRANSFORMS, "dead_code_elimination", SecondLinearFirst)
    (finding,) = run_case(case).findings
    assert (finding.check, finding.bucket.where) == ("further transforms", "output")


def test_transforms_of_a_case_are_checked() -> None:
    for jit, message in (
        ('{"executor": "torch", "transforms": ["transformer_engine"]}', "no transform of its own"),
        ('{"transforms": ["constant_folding", "constant_folding"]}', "twice"),
    ):
        with pytest.raises(CaseError, match=message):
            parse_case(f'{{"schema": 1, "layers": [{{"layer": "linear", "out_features": 64}}], "jit": {jit}}}'.encode())
