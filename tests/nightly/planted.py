"""A pytest plugin: each case with a linear is a finding in one bucket, each other one in another. None is run."""

from __future__ import annotations

from typing import Any

from harness import judge
from harness.bucket import Bucket
from harness.case import Case, Linear
from harness.isolation import ReportedFinding, ReportedVerdict


class Planted(ReportedFinding):
    """What the planted bug looks like."""


def judged(self: judge.IsolatedJudge, case: Case, thorough: bool) -> Any:
    """A verdict without a run."""
    kind = "linear" if any(isinstance(layer, Linear) for layer in case.layers) else "other"
    finding = Planted(case, Bucket("planted", "train", kind, "nobody", "none"), "planted for a test")
    verdict = ReportedVerdict(case, (finding,), None, 0, {}, "")
    return judge.ReportedJudgement(verdict, (), (finding,))


judge.IsolatedJudge._judge = judged  # type: ignore[assignment,method-assign]
