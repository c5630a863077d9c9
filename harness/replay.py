"""Replaying kept cases: does a regression still pass, and does a known issue still fail as its entry says?

Importing this module is cheap; replaying needs ``harness.device.activate()`` to have run. ``harness.replay_processes``
replays several cases at a time, ``harness.replay_plugin`` under pytest.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.case import CaseError
from harness.corpus import HABITS, REGRESSIONS, case_files, load_regression
from harness.exit_codes import ExitCode
from harness.judge import IsolatedJudge, Judge
from harness.known_issues import DEFAULT_FILE, KnownIssue, KnownIssues

if TYPE_CHECKING:
    from harness.checks.base import Finding
    from harness.device import Environment
    from harness.isolation import ReportedFinding

DEFAULT_PLACES = (REGRESSIONS, HABITS)
DEFAULT_RECORDS = Path(".tefuzz") / "replay.jsonl"
"""Where the outcomes of the last replay are, for one that goes on after an interruption."""


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


EXIT_CODES = {
    Outcome.CRASHED: ExitCode.OWN_ERROR,
    Outcome.MISSED: ExitCode.OWN_ERROR,
    Outcome.FAILED: ExitCode.FINDINGS,
    Outcome.DRIFTED: ExitCode.DRIFTED,
    Outcome.ERROR: ExitCode.BAD_INPUT,
}
"""The first outcome that occurred decides; those not listed are clean."""


def exit_code(outcomes: Iterable[Outcome]) -> ExitCode:
    """The exit code of a replay with these outcomes."""
    found = set(outcomes)
    return next((code for outcome, code in EXIT_CODES.items() if outcome in found), ExitCode.CLEAN)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One kept case after its replay."""

    name: str
    outcome: Outcome
    detail: str = ""
    """Why, on one line or several; empty where the outcome says it all."""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file to be replayed, as a case or as that of a known issue, which has to fail."""

    path: Path
    issue: str | None = None
    """The id of the known issue."""

    @property
    def name(self) -> str:
        """What it is called in what is printed."""
        return self.issue or str(self.path)


def plan(
    paths: Sequence[Path], issues: KnownIssues, installed: dict[str, str], reverts: Collection[str] = ()
) -> list[Kept]:
    """What to replay for ``paths``; without any, the corpus of the repository and all known issues.

    The case of a known issue that claims the installed versions is replayed as that issue, wherever it is met: that it
    fails no longer must not pass for a success. With reverts nothing is said about known issues.
    """
    claimed: dict[Path, list[str]] = {}
    for issue in [] if reverts else issues.claiming(installed):
        claimed.setdefault((DEFAULT_FILE.parent / issue.case).resolve(), []).append(issue.id)
    kept: list[Kept] = []
    for path in case_files(paths or [place for place in DEFAULT_PLACES if place.exists()]):
        kept += [Kept(path, issue) for issue in claimed.pop(path.resolve(), [None])]
    if not paths:
        kept += [Kept(path, issue) for path, named in claimed.items() for issue in named]
    return kept


def replay(judge: Judge | IsolatedJudge, kept: Kept, reverts: Collection[str] = ()) -> Replayed:
    """Replay what is kept; whatever happens in this process becomes an outcome."""
    started = time.perf_counter()
    if kept.issue is None:
        result = replay_file(judge, kept.path, reverts)
    else:
        result = replay_issue(judge, next(issue for issue in judge.issues.issue if issue.id == kept.issue))
    return replace(result, seconds=time.perf_counter() - started)


def replay_file(judge: Judge | IsolatedJudge, path: Path, reverts: Collection[str] = ()) -> Replayed:
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


def replay_issue(judge: Judge | IsolatedJudge, issue: KnownIssue, directory: Path = DEFAULT_FILE.parent) -> Replayed:
    """Replay the case of a known issue, which has to fail as the issue says. Paths are relative to ``directory``."""

    def outcome() -> tuple[Outcome, str]:
        judgement = judge.judge(load_regression(directory / issue.case).case)
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


def _essence(finding: Finding | ReportedFinding) -> str:
    return f"{finding.bucket} [{finding.bucket.digest}]\n{finding.message}"


def _claim(issue: KnownIssue) -> str:
    return ", ".join(f"{package} {specifier}" for package, specifier in issue.versions.items()) or "all versions"


class Records:
    """Outcomes in a file of JSON lines, so that a replay that was interrupted can go on.

    An outcome counts again only for the same content under the same ``conditions``: installed versions, device, reverts
    and known issues. Several processes may append to one file.
    """

    def __init__(self, path: Path, conditions: str, *, resume: bool) -> None:
        self._path = path
        self._conditions = conditions
        self._done = _read_records(path) if resume else {}

    def outcome_of(self, kept: Kept) -> Replayed | None:
        """The outcome of an earlier replay, unless something that it depends on has changed."""
        return self._done.get(self._key(kept)) if self._done else None

    def append(self, kept: Kept, result: Replayed) -> None:
        """Keep an outcome. The line is on disk when this returns."""
        line = msgspec.json.encode(_Record(self._key(kept), result)) + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            file.write(line)

    def _key(self, kept: Kept) -> str:
        try:
            content = kept.path.read_bytes()
        except OSError as error:
            content = str(error).encode()
        return hashlib.sha256(b"\0".join((self._conditions.encode(), str(kept).encode(), content))).hexdigest()


@dataclass(frozen=True, slots=True)
class _Record:
    key: str
    result: Replayed


def conditions(environment: Environment, reverts: Collection[str]) -> str:
    """What an outcome depends on beside the file that is replayed."""
    return "\n".join((environment.header(), *reverts, DEFAULT_FILE.read_text()))


def _read_records(path: Path) -> dict[str, Replayed]:
    """The last outcome for each key; a line cut off by a crash is passed over."""
    done: dict[str, Replayed] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                record = msgspec.json.decode(line, type=_Record)
            except msgspec.DecodeError:
                continue
            done[record.key] = record.result
    return done
