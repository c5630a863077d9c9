"""``pytest fuzz/ --tefuzz-replay DIR``: a test for each kept case, spread by xdist, with the outcomes of a replay.

Registered by ``harness.pytest_plugin`` when the option is given; the test itself is in ``fuzz/test_replay.py``.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.exit_codes import ExitCode
from harness.replay import (
    DEFAULT_RECORDS,
    EXIT_CODES,
    Kept,
    Outcome,
    Records,
    Replayed,
    conditions,
    exit_code,
    plan,
    replay,
)

if TYPE_CHECKING:
    from harness.judge import IsolatedJudge
    from harness.pytest_plugin import FuzzSession

PROPERTY = "tefuzz outcome"


class ReplaySession:
    """State of one pytest process that replays kept cases."""

    def __init__(self, session: FuzzSession, paths: list[str]) -> None:
        from harness.case import CaseError
        from harness.device import installed_versions
        from harness.known_issues import load_known_issues

        self._session = session
        self._records_path = session.config.rootpath / (session.config.getoption("--tefuzz-records") or DEFAULT_RECORDS)
        self._resume: bool = session.config.getoption("--tefuzz-resume")
        if session.is_controller and not self._resume and not session.config.option.collectonly:
            self._records_path.unlink(missing_ok=True)
        try:
            self._kept = plan(
                [Path(path) for path in paths], load_known_issues(), dict(installed_versions()), session.reverts
            )
        except CaseError as error:
            raise pytest.UsageError(f"--tefuzz-replay: {error}") from error
        self._outcomes: list[Outcome] = []

    @property
    def title(self) -> str:
        """How much is replayed, for the header."""
        return f"{len(self._kept)} cases, outcomes in {self._records_path}"

    @cached_property
    def _judge(self) -> IsolatedJudge:
        from harness.judge import IsolatedJudge

        return IsolatedJudge.of(self._session.isolated)

    @cached_property
    def _records(self) -> Records:
        environment = self._session.isolated.ready().environment
        return Records(self._records_path, conditions(environment, self._session.reverts), resume=self._resume)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test for each kept case."""
        if "kept" in metafunc.fixturenames:
            metafunc.parametrize("kept", self._kept, ids=[kept.name for kept in self._kept])

    def replay(self, kept: Kept) -> Replayed:
        """Replay one case, or take the outcome of the replay that was interrupted."""
        judge = self._judge
        result = self._records.outcome_of(kept)
        if result is None:
            result = replay(judge, kept, self._session.reverts)
            self._records.append(kept, result)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome; a test that gave none was ended by what it ran."""
        outcome = _outcome(report)
        if outcome is not None:
            self._outcomes.append(outcome)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Say FIXED or KNOWN where pytest would say passed."""
        outcome = _outcome(report) if isinstance(report, pytest.TestReport) else None
        if outcome is None:
            return None
        bad = outcome in EXIT_CODES
        return ("failed", outcome[0], outcome) if bad else (outcome.lower(), outcome[0].lower(), outcome)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """How many cases had which outcome."""
        if self._session.is_controller:
            counts = Counter(self._outcomes)
            terminalreporter.section("tefuzz replay")
            terminalreporter.write_line(
                f"{len(self._outcomes)} of {len(self._kept)} cases: "
                + (", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "-")
            )
            if len(self._outcomes) < len(self._kept):
                terminalreporter.write_line("To go on: the same command with --tefuzz-resume")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End with the exit codes of ``tefuzz replay``, unless pytest itself was interrupted or broke."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            code = exit_code(self._outcomes)
            unexplained = code is ExitCode.CLEAN and exitstatus == pytest.ExitCode.TESTS_FAILED
            session.exitstatus = ExitCode.OWN_ERROR if unexplained else code


def _outcome(report: pytest.TestReport) -> Outcome | None:
    """The outcome of a kept case; None for anything else that pytest reports."""
    named = dict(report.user_properties).get(PROPERTY)
    if report.when == "call" and named is not None:
        return Outcome(str(named))
    # xdist says so of a test whose worker died.
    died = report.failed and report.when not in ("setup", "call", "teardown")
    return Outcome.FAILED if died else None
