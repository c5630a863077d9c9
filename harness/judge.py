"""Running a case and telling what is new from what is known.

Importing this module is cheap; ``Judge.judge`` needs ``harness.device.activate()`` to have run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.case import Case
from harness.known_issues import KnownIssue, KnownIssues, load_known_issues

if TYPE_CHECKING:
    from harness.checks.base import Bucket, Finding
    from harness.device import Environment
    from harness.run import Verdict


REMEMBERED_CASES = 4096
"""Judgements kept per process; more than a shrink needs."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict whose findings are told apart by whether a known issue explains them."""

    verdict: Verdict
    explained: tuple[tuple[Finding, KnownIssue], ...]
    unexplained: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Judge:
    """Runs cases and knows which findings are understood under the installed versions."""

    issues: KnownIssues
    versions: dict[str, str]

    @classmethod
    def of(cls, environment: Environment) -> Judge:
        """A judge for what is installed, with the known issues of the corpus."""
        return cls(load_known_issues(), dict(environment.versions))

    def judge(self, case: Case, *, thorough: bool = True) -> Judgement:
        """Run ``case`` once; without ``thorough`` no further than to its first findings (``run_case``)."""
        from harness.run import run_case

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Thunder's and TE's own: no user of tefuzz can mend them
            verdict = run_case(case, thorough=thorough)
        explained: list[tuple[Finding, KnownIssue]] = []
        unexplained: list[Finding] = []
        for finding in verdict.findings:
            issue = self.issues.explaining(case, finding.bucket, self.versions)
            if issue is None:
                unexplained.append(finding)
            else:
                explained.append((finding, issue))
        return Judgement(verdict, tuple(explained), tuple(unexplained))

    def first_unexplained(self, case: Case) -> Finding | None:
        """The first finding of a case that is no known issue; it is run no further than to there."""
        return next(iter(self.judge(case, thorough=False).unexplained), None)

    def claimed_issues(self) -> list[KnownIssue]:
        """The known issues that claim the installed versions: they have to fail."""
        return self.issues.claiming(self.versions)


class FirstFindings:
    """Judges cases no further than to their first findings, as the fuzzer wants it, and each of them once.

    Shrinking comes to the same case by many ways. ``before`` is told of each case that is run.
    """

    def __init__(self, judge: Judge, before: Callable[[Case], None]) -> None:
        self._judge = judge
        self._before = before
        self._judged: dict[Case, Judgement] = {}

    def judge(self, case: Case) -> Judgement:
        """What was judged the first time, then without what was observed. A new finding has a class of its bucket."""
        if case in self._judged:
            return self._judged[case]
        self._before(case)
        judgement = self._judge.judge(case, thorough=False)
        for finding in judgement.unexplained[:1]:
            finding.__class__ = bucket_class(type(finding), finding.bucket)  # type: ignore[arg-type]  # a class is hashable
        if len(self._judged) >= REMEMBERED_CASES:
            self._judged.clear()
        self._judged[case] = replace(judgement, verdict=judgement.verdict.without_observations())
        return judgement


@lru_cache(maxsize=4096)
def bucket_class(kind: type[Finding], bucket: Bucket) -> type[Finding]:
    """A subclass for one bucket: Hypothesis tells failures apart by class, so shrinking stays in the bucket."""
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": str(bucket)})
