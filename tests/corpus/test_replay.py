"""What a replay says of each kind of file, and how its outcomes become an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.commands import replay
from harness.corpus import REGRESSIONS
from harness.device import activate
from harness.fixes import reverted
from harness.judge import Judge
from harness.known_issues import DEFAULT_FILE, BucketPattern, KnownIssue, KnownIssues
from harness.replay import Outcome, Replayed, replay_file, replay_issue
from tests.cli.support import CASE, ENVIRONMENT, tefuzz, write

FUSER: dict[str, Any] = json.loads((REGRESSIONS / "fuser.json").read_text())
HIDDEN = DEFAULT_FILE.parent / "known" / "te-ops-parameters-hidden-from-start.json"
NO_PARAMETERS = FUSER["case"] | {"layers": [{"layer": "activation"}]}
"""A case that the fuser's bug cannot touch."""


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.of(activate())


def issue(case: Path, check: str) -> KnownIssue:
    return KnownIssue(
        id="i", title="t", url="u", versions={"torch": ">=2"}, case=str(case), bucket=BucketPattern(check=check)
    )


def knowing(judge: Judge, *issues: KnownIssue) -> Judge:
    return Judge(KnownIssues(issue=issues), judge.versions)


def test_outcomes_of_files(judge: Judge, tmp_path: Path) -> None:
    fixed = write(tmp_path / "fixed.json", FUSER)
    passed = write(tmp_path / "passed.json", NO_PARAMETERS)
    assert replay_file(judge, fixed).outcome is Outcome.FIXED
    assert replay_file(judge, passed).outcome is Outcome.PASSED
    assert replay_file(judge, HIDDEN) == Replayed(str(HIDDEN), Outcome.KNOWN, "te-ops-parameters-hidden-from-start")
    assert replay_file(knowing(judge), HIDDEN).outcome is Outcome.FAILED
    broken = replay_file(judge, write(tmp_path / "broken.json", "{"))
    assert broken.outcome is Outcome.ERROR
    assert "Restore the file" in broken.detail


def test_blindness_for_a_reverted_fix_is_said(judge: Judge, tmp_path: Path) -> None:
    blind = write(tmp_path / "blind.json", FUSER | {"case": NO_PARAMETERS})
    seeing = write(tmp_path / "seeing.json", FUSER)
    with reverted(["fuser"]):
        missed = replay_file(judge, blind, ["fuser"])
        assert replay_file(judge, seeing, ["fuser"]).outcome is Outcome.FAILED
    assert missed.outcome is Outcome.MISSED
    assert FUSER["why"] in missed.detail


def test_outcomes_of_known_issues(judge: Judge, tmp_path: Path) -> None:
    known = issue(HIDDEN, ".*")
    assert replay_issue(knowing(judge, known), known).outcome is Outcome.KNOWN
    clean = issue(write(tmp_path / "clean.json", NO_PARAMETERS), ".*")
    drifted = replay_issue(knowing(judge, clean), clean)
    assert drifted.outcome is Outcome.DRIFTED
    assert "it claims torch >=2" in drifted.detail
    # It fails, but not as the issue says.
    foreign = issue(HIDDEN, "output")
    assert replay_issue(knowing(judge, foreign), foreign).outcome is Outcome.FAILED
    assert replay_issue(knowing(judge, foreign, known), foreign).outcome is Outcome.DRIFTED
    missing = issue(tmp_path / "missing.json", ".*")
    assert replay_issue(knowing(judge, missing), missing).outcome is Outcome.ERROR


def test_a_crash_of_the_harness_is_an_outcome(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_case(_case: object, *, thorough: bool) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("harness.run.run_case", run_case)
    crashed = replay_file(judge, write(tmp_path / "case.json", CASE))
    assert crashed.outcome is Outcome.CRASHED
    assert "ZeroDivisionError: ours" in crashed.detail


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ("FIXED PASSED KNOWN", 0),
        ("PASSED ERROR", 2),
        ("ERROR DRIFTED", 4),
        ("ERROR DRIFTED FAILED", 1),
        ("FAILED CRASHED", 3),
        ("FAILED MISSED", 3),
    ],
)
def test_exit_codes(outcomes: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(_judge: Judge, path: Path, _reverts: object) -> Replayed:
        return Replayed(str(path), Outcome(path.stem), "because\nof this")

    monkeypatch.setattr(replay, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(replay, "replay_file", said)
    for outcome in outcomes.split():
        write(tmp_path / f"{outcome}.json", CASE)
    result = tefuzz("replay", tmp_path)
    assert result.exit_code == code
    assert all(f"] {outcome:<7} " in result.stdout and f"1 {outcome}" in result.stdout for outcome in outcomes.split())
    assert "    because\n    of this\n" in result.stdout


def test_the_middle_of_a_long_detail_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detail = "\n".join(f"line {number}" for number in range(40))
    monkeypatch.setattr(replay, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(replay, "replay_file", lambda *_: Replayed("x", Outcome.FAILED, detail))
    lines = tefuzz("replay", write(tmp_path / "x.json", CASE)).stdout.splitlines()[2:-1]
    assert lines[0] == "    line 0"
    assert lines[5] == "    ... (30 lines left out)"
    assert lines[-1] == "    line 39"
    assert len(lines) == 11


def test_the_whole_corpus_is_as_it_says() -> None:
    result = tefuzz("replay")
    assert result.exit_code == 0, result.output
    assert "FIXED" in result.stdout
    assert "v1-checkpoint-recompute" in result.stdout, "known issues are replayed too"


def test_a_revert_fails_its_own_regression_and_leaves_known_issues_out() -> None:
    result = tefuzz("replay", "--revert", "fuser")
    assert result.exit_code == 1, result.output
    assert "THIS REPLAY HAS TO FAIL" in result.stdout
    assert "1 FAILED" in result.stdout
    assert "KNOWN" not in result.stdout
