"""Did the thing under test run? TE's executor claims exactly the linears that it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from harness.checks.base import Evidence, Finding, Run
from harness.precision import claimed_linears
from harness.traces import LINEAR_FORWARD


class WrongClaims(Finding):
    """TE claimed more or fewer linears than its rules say."""

    check: ClassVar[str] = "claims"
    promise: ClassVar[str] = "TE's executor claims the linears that its own rules let it claim, and no others."


def check(run: Run) -> Iterator[Finding]:
    """A finding per compiled specialisation whose forward trace has another number of TE linears than expected."""
    for compilation in run.subject.compilations:
        if not compilation.finished:
            continue
        expected = claimed_linears(run.case, compilation.step)
        seen = te_linear_count(compilation.forward[-1])
        if seen != len(expected):
            yield WrongClaims(
                run,
                f"step {compilation.step}: TE claimed {seen} linears, but should claim {len(expected)} "
                f"({', '.join(expected) or 'none'})",
                stage=run.case.steps[compilation.step].mode,
                where="more" if seen > len(expected) else "fewer",
                evidence=Evidence(
                    layers=expected, traces=(("forward trace", compilation.forward[-1]),), step=compilation.step
                ),
            )


def te_linear_count(trace: Any) -> int:
    """The number of linears that TE runs in a forward trace, of either executor."""
    return sum(
        bsym.sym.name == LINEAR_FORWARD or bsym.sym.name.startswith("te_linear_") for bsym in trace.bound_symbols
    )
