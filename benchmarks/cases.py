"""Where the time of a fuzz run goes: cases per second, and the shares of the subject, the reference and the checks.

    python benchmarks/cases.py [CASES]

Draws cases from the strategies with a fixed seed, runs them in this process and prints a table. The overhead of the
harness is the time outside the calls into the subjects, over the time inside them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from harness.case import Case
from harness.device import activate
from strategies import cases, fuser_cases

STRATEGIES: dict[str, SearchStrategy[Case]] = {
    "te_v2": cases("transformer_engine"),
    "te_v1": cases("transformer_engine_v1"),
    "torch": cases("torch"),
    "fuser": fuser_cases(),
}


def main(count: int) -> None:
    """Run ``count`` cases of each kind."""
    activate()
    print(f"{'kind':<8}{'cases/s':>9}{'subject':>9}{'reference':>11}{'checks':>8}{'drawing and rest':>18}")
    for name, strategy in STRATEGIES.items():
        started = time.perf_counter()
        spent = spent_on(strategy, count)
        total = time.perf_counter() - started
        subject, reference, checks = (spent[phase] / total for phase in ("subject", "reference", "checks"))
        rest = 1 - subject - reference - checks
        rate = spent["cases"] / total
        print(f"{name:<8}{rate:>9.2f}{subject:>9.0%}{reference:>11.0%}{checks:>8.0%}{rest:>18.0%}")


def spent_on(strategy: SearchStrategy[Case], count: int) -> Counter[str]:
    """Seconds by phase over ``count`` cases, and their number as ``cases``."""
    from harness.run import run_case

    spent: Counter[str] = Counter()

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Case) -> None:
        verdict = run_case(case, thorough=False)
        spent["cases"] += 1
        spent.update(verdict.seconds)

    run()
    return spent


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
