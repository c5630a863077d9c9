"""Running a case and telling what is new from what is known.

Importing this module is cheap; ``Judge.judge`` needs ``harness.device.activate()`` to have run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from harness.case import Case
from harness.isolation import (
    PROCESS_FINDINGS,
    IsolatedRunner,
    ReportedFinding,
    ReportedVerdict,
    VerdictNotDeterministic,
)
from harness.known_issues import KnownIssue, KnownIssues, load_known_issues

if TYPE_CHECKING:
    from harness.bucket import Bucket
    from harness.checks.base import Finding
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
        return Judgement(verdict, *_told_apart(self.issues, self.versions, case, verdict.findings))

    def judge_first(self, case: Case) -> Judgement:
        """Run ``case`` no further than to its first findings."""
        return self.judge(case, thorough=False)

    def first_unexplained(self, case: Case) -> Finding | None:
        """The first finding of a case that is no known issue; it is run no further than to there."""
        return next(iter(self.judge_first(case).unexplained), None)

    def claimed_issues(self) -> list[KnownIssue]:
        """The known issues that claim the installed versions: they have to fail."""
        return self.issues.claiming(self.versions)


@dataclass(frozen=True, slots=True)
class ReportedJudgement:
    """A ``Judgement`` of a case that another process ran."""

    verdict: ReportedVerdict
    explained: tuple[tuple[ReportedFinding, KnownIssue], ...]
    unexplained: tuple[ReportedFinding, ...]


AnyJudgement = Judgement | ReportedJudgement

HUNG_BEFORE = 10.0
"""A judge that has met a hang gives later cases this many times less time: shrinking meets it again and again."""


@dataclass(slots=True)
class IsolatedJudge:
    """Judges cases in a child process, as ``Judge`` does in this one: a case that ends the child is a finding.

    With ``confirms`` the first finding of each bucket is looked at again in a new process: what comes and goes is a
    finding of its own kind, and what depends on the cases before could not be replayed.
    """

    issues: KnownIssues
    versions: dict[str, str]
    runner: IsolatedRunner
    confirms: bool = False
    _confirmed: set[Bucket] = field(default_factory=set)
    _hung: bool = False

    @classmethod
    def of(cls, runner: IsolatedRunner, *, confirms: bool = False) -> IsolatedJudge:
        """A judge with the known issues of the corpus; it waits until ``runner`` has a child."""
        return cls(load_known_issues(), dict(runner.ready().environment.versions), runner, confirms)

    def judge_first(self, case: Case) -> ReportedJudgement:
        """Run ``case`` no further than to its first findings."""
        return self.judge(case, thorough=False)

    def judge(self, case: Case, *, thorough: bool = True) -> ReportedJudgement:
        """Run ``case`` once, and a second time where a finding is to be confirmed."""
        judgement = self._judge(case, thorough)
        if not self.confirms or not judgement.unexplained:
            return judgement
        bucket = judgement.unexplained[0].bucket
        if bucket in self._confirmed:
            return judgement
        self.runner.close()
        again = self._judge(case, thorough)
        if _essence(judgement.verdict) == _essence(again.verdict):
            self._confirmed.add(bucket)
            return judgement
        finding = _not_deterministic(judgement.verdict, again.verdict)
        verdict = replace(judgement.verdict, findings=(finding,))
        return ReportedJudgement(verdict, *_told_apart(self.issues, self.versions, case, verdict.findings))

    def _judge(self, case: Case, thorough: bool) -> ReportedJudgement:
        limit = self.runner.settings.case_seconds / (HUNG_BEFORE if self._hung else 1.0)
        verdict = self.runner.run(case, thorough=thorough, seconds=limit)
        self._hung |= any(finding.check == "hang" for finding in verdict.findings)
        return ReportedJudgement(verdict, *_told_apart(self.issues, self.versions, case, verdict.findings))


class _HasBucket(Protocol):
    @property
    def bucket(self) -> Bucket: ...


_F = TypeVar("_F", bound=_HasBucket)


def _told_apart(
    issues: KnownIssues, versions: dict[str, str], case: Case, findings: Iterable[_F]
) -> tuple[tuple[tuple[_F, KnownIssue], ...], tuple[_F, ...]]:
    """Findings that a known issue explains, each with it, and the others."""
    explained: list[tuple[_F, KnownIssue]] = []
    unexplained: list[_F] = []
    for finding in findings:
        issue = issues.explaining(case, finding.bucket, versions)
        if issue is None:
            unexplained.append(finding)
        else:
            explained.append((finding, issue))
    return tuple(explained), tuple(unexplained)


def _essence(verdict: ReportedVerdict) -> tuple[str, ...]:
    """What two runs of a case must have in common; where exactly a process ends is not part of it."""
    if verdict.findings and verdict.findings[0].check in PROCESS_FINDINGS:
        return (verdict.findings[0].check,)
    return (verdict.fingerprint, *(str(finding.bucket) for finding in verdict.findings))


def _not_deterministic(first: ReportedVerdict, again: ReportedVerdict) -> VerdictNotDeterministic:
    found = first.findings[0]
    outcomes = [_outcome(first), _outcome(again)]
    if outcomes[0] == outcomes[1]:
        outcomes[1] = "the same finding with other numbers"
    message = (
        f"The verdict is not deterministic: first {outcomes[0]}, then in a new process {outcomes[1]}.\n"
        f"First: {found.message}"
    )
    where = f"{found.check} then {again.findings[0].check if again.findings else 'nothing'}"
    return VerdictNotDeterministic(first.case, replace(found.bucket, check="not deterministic", where=where), message)


def _outcome(verdict: ReportedVerdict) -> str:
    return str(verdict.findings[0].bucket) if verdict.findings else "no finding"


class _CanBeFirst(Protocol):
    """What ``Judgement`` and ``ReportedJudgement`` have in common."""

    @property
    def verdict(self) -> Any: ...

    @property
    def unexplained(self) -> tuple[Any, ...]: ...


_J = TypeVar("_J", bound=_CanBeFirst)


class FirstFindings(Generic[_J]):
    """Judges cases no further than to their first findings, as the fuzzer wants it, and each of them once.

    Shrinking comes to the same case by many ways. ``before`` is told of each case that is run.
    """

    def __init__(self, judge: Callable[[Case], _J], before: Callable[[Case], None]) -> None:
        self._judge = judge
        self._before = before
        self._judged: dict[Case, _J] = {}

    def judge(self, case: Case) -> _J:
        """What was judged the first time, then without what was observed. A new finding has a class of its bucket."""
        if case in self._judged:
            return self._judged[case]
        self._before(case)
        judgement = self._judge(case)
        for finding in judgement.unexplained[:1]:
            finding.__class__ = bucket_class(type(finding), finding.bucket)  # type: ignore[arg-type]  # a class is hashable
        if len(self._judged) >= REMEMBERED_CASES:
            self._judged.clear()
        without = judgement.verdict.without_observations()
        self._judged[case] = replace(judgement, verdict=without)  # type: ignore[type-var]  # both are dataclasses
        return judgement


@lru_cache(maxsize=4096)
def bucket_class(kind: type[AssertionError], bucket: Bucket) -> type[AssertionError]:
    """A subclass for one bucket: Hypothesis tells failures apart by class, so shrinking stays in the bucket."""
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": str(bucket)})
