"""The fuzzer's search for one finding: draw cases, stop at the first that is no known issue, and shrink it.

Hypothesis draws and shrinks; this module counts, keeps the time and remembers the smallest case so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness.case import Case
from harness.device import activate
from harness.judge import AnyJudgement, FirstFindings, Judge

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.checks.base import Finding
    from harness.isolation import ReportedFinding


class _TimeIsUp(BaseException):
    """Ends the search at its deadline; no exception of a subject, so nothing on the way may catch it."""


@dataclass
class Search:
    """What one seed of the fuzzer did."""

    strategy: SearchStrategy[Case]
    max_examples: int
    time_box: float = float("inf")
    """Seconds after which no further case is run, be it to find or to shrink."""
    shrink_box: float = float("inf")
    """Seconds for shrinking, within the time box."""
    before: Callable[[Case], None] = lambda case: None
    """Told of each case before it runs."""
    judge: Callable[[Case], AnyJudgement] | None = None
    """What runs a case no further than to its first findings; in this process without."""
    examples_to_find: int | None = None
    executions: int = 0
    started: float = field(default_factory=time.perf_counter)
    seconds_to_find: float = 0.0
    finding: Finding | ReportedFinding | None = None
    """The smallest finding so far."""
    timed_out: bool = False

    def __post_init__(self) -> None:
        judge = self.judge or Judge.of(activate()).judge_first
        self._first_findings: FirstFindings[AnyJudgement] = FirstFindings(judge, self._count)

    def run(self, number: int) -> None:
        """Fuzz with seed ``number``; afterwards ``finding`` is the shrunk one, or None."""

        @seed(number)
        @settings(
            max_examples=self.max_examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
        )
        @given(self.strategy)
        def fuzz(case: Case) -> None:
            self.check(case)

        try:
            fuzz()
        except AssertionError as finding:
            if not hasattr(finding, "bucket"):
                raise
            self.finding = cast("Finding | ReportedFinding", finding)
        except _TimeIsUp:
            self.timed_out = True

    @property
    def seconds(self) -> float:
        """Seconds since the search was made."""
        return time.perf_counter() - self.started

    @property
    def _deadline(self) -> float:
        if self.examples_to_find is None:
            return self.time_box
        return min(self.time_box, self.seconds_to_find + self.shrink_box)

    def check(self, case: Case) -> None:
        """Run one case; the first finding that is no known issue is raised as in the fuzz suite."""
        if self.seconds > self._deadline:
            raise _TimeIsUp
        unexplained = self._first_findings.judge(case).unexplained
        if not unexplained:
            return
        if self.examples_to_find is None:
            self.examples_to_find = self.executions
            self.seconds_to_find = self.seconds
        # While it shrinks, Hypothesis runs only cases that are simpler than the best one.
        self.finding = unexplained[0]
        raise self.finding.with_traceback(None)

    def _count(self, case: Case) -> None:
        self.executions += 1
        self.before(case)
