"""A verdict and all its numbers are the same in any process, in any order, and among any number of workers.

``TEFUZZ_DETERMINISM_CASES`` says how many cases are tried; ``make determinism`` tries 200.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from harness.case import Case, Jit, LayerNorm, Linear, replace
from harness.isolation import IsolatedRunner, ReportedVerdict, Settings
from strategies import cases, fuser_cases

COUNT = int(os.environ.get("TEFUZZ_DETERMINISM_CASES", "8"))
STRATEGIES: tuple[SearchStrategy[Case], ...] = (
    cases("transformer_engine"),
    cases("transformer_engine_v1"),
    cases("torch"),
    fuser_cases(),
)


def drawn(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    found: dict[str, Case] = {}

    @seed(9)
    @settings(
        max_examples=2 * count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck), derandomize=False,
    )  # fmt: skip
    @given(strategy)
    def draw(case: Case) -> None:
        found.setdefault(case.id, case)

    draw()
    return list(found.values())[-count:]


Numbers = dict[str, tuple[str, tuple[str, ...]]]


def numbers(verdicts: Sequence[ReportedVerdict]) -> Numbers:
    return {
        verdict.case.id: (verdict.fingerprint, tuple(str(finding.bucket) for finding in verdict.findings))
        for verdict in verdicts
    }


def run_all(chosen: Sequence[Case]) -> Numbers:
    with IsolatedRunner(Settings()) as runner:
        return numbers([runner.run(case) for case in chosen])


def test_any_process_order_and_number_of_workers() -> None:
    chosen = [case for strategy in STRATEGIES for case in drawn(strategy, -(-COUNT // len(STRATEGIES)))]
    assert len(chosen) >= COUNT
    in_order = run_all(chosen)
    assert len({fingerprint for fingerprint, _ in in_order.values()}) > len(chosen) // 2, "cases tell apart"
    shuffled = random.Random(1).sample(chosen, len(chosen))
    assert run_all(shuffled) == in_order
    again = random.Random(2).sample(chosen, len(chosen))
    with ThreadPoolExecutor(2) as two:
        one, other = two.map(run_all, (again[::2], again[1::2]))
    assert {**one, **other} == in_order


def test_the_fingerprint_sees_all_numbers() -> None:
    """The test above could not fail if the fingerprint left them out."""
    case = Case(layers=(Linear(out_features=32),), jit=Jit(executor="torch"))
    others = [replace(case, seed=1), replace(case, layers=(Linear(out_features=32), LayerNorm()))]
    assert len({fingerprint for fingerprint, _ in run_all([case, *others]).values()}) == 3
