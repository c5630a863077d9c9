"""Replaying kept cases: does a regression still pass, and does a known issue still fail as its entry says?

Importing this module is cheap; replaying needs ``harness.device.activate()`` to have run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from harness.case import CaseError, load_case
from harness.corpus import load_regression
from harness.judge import Judge
from harness.known_issues import DEFAULT_FILE, KnownIssue

if TYPE_CHECKING:
    from harness.checks.base import Finding


class Outcome(StrEnum):
    """What became of one kept case."""

    FIXED = "FIXED"
    """No finding, and the file names the fix without which there is one."""
    PASSED = "PASSED"
    """No finding."""
    KNOWN = "KNOWN"
    """Every finding is a known issue."""
    FAILED = "FAILED"
    """A finding that no known issue explains."""
    DRIFTED = "DRIFTED"
    """The case of a known issue shows it no longer, under versions that the issue claims."""
    MISSED = "MISSED"
    """The fix that the file names is reverted, and nothing was found: the harness has gone blind for the bug."""
    ERROR = "ERROR"
    """The file is missing or broken."""
    CRASHED = "CRASHED"
    """The harness itself raised."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One kept case after its replay."""

    name: str
    outcome: Outcome
    detail: str = ""
    """Why, on one line or several; empty where the outcome says it all."""


def replay_file(judge: Judge, path: Path, reverts: Collection[str] = ()) -> Replayed:
    """Replay one regression or bare case. ``reverts`` are those in force: a file that names one of them has to fail."""

    def outcome() -> tuple[Outcome, str]:
        entry = load_regression(path)
        judgement = judge.judge(entry.case)
        if judgement.unexplained:
            return Outcome.FAILED, _essence(judgement.unexplained[0])
        if entry.revert in reverts:
            return Outcome.MISSED, f"with {entry.revert} reverted there has to be a finding: {entry.why}"
        if judgement.explained:
            return Outcome.KNOWN, ", ".join(dict.fromkeys(issue.id for _, issue in judgement.explained))
        return (Outcome.PASSED if entry.revert is None else Outcome.FIXED), ""

    return _replayed(str(path), outcome)


def replay_issue(judge: Judge, issue: KnownIssue, directory: Path = DEFAULT_FILE.parent) -> Replayed:
    """Replay the case of a known issue, which has to fail as the issue says. Paths are relative to ``directory``."""

    def outcome() -> tuple[Outcome, str]:
        judgement = judge.judge(load_case(directory / issue.case))
        if judgement.unexplained:
            return Outcome.FAILED, _essence(judgement.unexplained[0])
        if issue not in [known for _, known in judgement.explained]:
            return Outcome.DRIFTED, (
                f"{issue.case} shows it no longer; it claims {_claim(issue)}. "
                "Correct `versions` of the issue, or delete the issue if no release has it."
            )
        return Outcome.KNOWN, issue.title

    return _replayed(issue.id, outcome)


def _replayed(name: str, outcome: Callable[[], tuple[Outcome, str]]) -> Replayed:
    try:
        return Replayed(name, *outcome())
    except CaseError as error:
        return Replayed(name, Outcome.ERROR, str(error))
    except Exception:  # noqa: BLE001  one case that breaks the harness must not hide the outcome of the others
        return Replayed(name, Outcome.CRASHED, traceback.format_exc())


def _essence(finding: Finding) -> str:
    return f"{finding.bucket} [{finding.bucket.digest}]\n{finding.message}"


def _claim(issue: KnownIssue) -> str:
    return ", ".join(f"{package} {specifier}" for package, specifier in issue.versions.items()) or "all versions"
