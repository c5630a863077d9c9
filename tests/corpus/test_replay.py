"""What a replay says of each kind of file, and how its outcomes become an exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import run
from harness.case import Case
from harness.commands import replay as command
from harness.corpus import REGRESSIONS
from harness.device import activate
from harness.fixes import reverted
from harness.judge import Judge
from harness.known_issues import DEFAULT_FILE, BucketPattern, KnownIssue, KnownIssues
from harness.replay import Kept, Outcome, Records, Replayed, plan, replay_file, replay_issue
from tests.cli.support import CASE, ENVIRONMENT, Invented, tefuzz, write

FUSER: dict[str, Any] = json.loads((REGRESSIONS / "fuser.json").read_text())
HIDDEN = DEFAULT_FILE.parent / "known" / "te-ops-parameters-hidden-from-start.json"
SHOWN = "output requires grad|gradient missing|fp8 amax history|fp8 scale"
NO_PARAMETERS = FUSER["case"] | {"layers": [{"layer": "activation"}]}
"""A case that the fuser's bug cannot touch."""


HERE = ("-n", "0", "--records")
"""In this process, which has the subjects already; the file follows."""


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.of(activate())


def issue(case: Path, check: str) -> KnownIssue:
    return KnownIssue(
        id="i", title="t", url="docs/u", versions={"torch": ">=2"}, case=str(case), bucket=BucketPattern(check=check)
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
    known = issue(HIDDEN, SHOWN)
    assert replay_issue(knowing(judge, known), known).outcome is Outcome.KNOWN
    clean = issue(write(tmp_path / "clean.json", NO_PARAMETERS), SHOWN)
    drifted = replay_issue(knowing(judge, clean), clean)
    assert drifted.outcome is Outcome.DRIFTED
    assert "it claims torch >=2" in drifted.detail
    # It fails, but not as the issue says.
    foreign = msgspec.structs.replace(issue(HIDDEN, "output"), id="foreign")
    assert replay_issue(knowing(judge, foreign), foreign).outcome is Outcome.FAILED
    assert replay_issue(knowing(judge, foreign, known), foreign).outcome is Outcome.DRIFTED
    missing = issue(tmp_path / "missing.json", SHOWN)
    assert replay_issue(knowing(judge, missing), missing).outcome is Outcome.ERROR


def test_a_known_issue_does_not_hide_another_finding_of_its_case(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    known = issue(HIDDEN, SHOWN)
    real = run.run_case

    def with_another(case: Case, *, thorough: bool) -> run.Verdict:
        verdict = real(case, thorough=thorough)
        other = Invented(verdict.run, "something else is wrong too", stage="train", where="output")
        return replace(verdict, findings=(*verdict.findings, other))

    monkeypatch.setattr(run, "run_case", with_another)
    both = replay_issue(knowing(judge, known), known)
    assert both.outcome is Outcome.FAILED
    assert "something else is wrong too" in both.detail
    assert replay_file(knowing(judge, known), HIDDEN).outcome is Outcome.FAILED


def test_a_crash_of_the_harness_is_an_outcome(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_case(_case: object, *, thorough: bool) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("harness.run.run_case", run_case)
    crashed = replay_file(judge, write(tmp_path / "case.json", CASE))
    assert crashed.outcome is Outcome.CRASHED
    assert "ZeroDivisionError: ours" in crashed.detail


def names(planned: list[Kept]) -> list[str]:
    return [Path(kept.name).name for kept in planned]


def test_the_case_of_a_known_issue_is_replayed_as_that_issue(tmp_path: Path, judge: Judge) -> None:
    """Otherwise one that fails no longer would pass for a success."""
    known, other = issue(HIDDEN, "output"), write(tmp_path / "other.json", CASE)
    twice = msgspec.structs.replace(known, id="j")
    issues = KnownIssues(issue=(known, twice))
    assert names(plan([HIDDEN, other], issues, judge.versions)) == ["i", "j", "other.json"]
    assert names(plan([HIDDEN.parent / ".." / "known" / HIDDEN.name], issues, judge.versions)) == ["i", "j"]
    assert names(plan([HIDDEN], issues, judge.versions, ["fuser"])) == [HIDDEN.name], "reverts: it may fail otherwise"
    assert names(plan([HIDDEN], issues, {"torch": "1.0"})) == [HIDDEN.name], "not claimed: it has to pass"
    everything = names(plan([], issues, judge.versions))
    assert everything[-2:] == ["i", "j"]
    assert "caching.json" in everything


def test_an_outcome_counts_again_only_for_the_same_thing(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    kept, other = Kept(write(tmp_path / "a.json", CASE)), Kept(write(tmp_path / "b.json", CASE))
    result = Replayed(kept.name, Outcome.FAILED, "why")
    Records(records, "now", resume=False).append(kept, result)
    with records.open("ab") as file:
        file.write(b'{"key": "cut o')
    again = Records(records, "now", resume=True)
    assert again.outcome_of(kept) == result
    assert again.outcome_of(other) is None
    assert again.outcome_of(Kept(kept.path, "an issue")) is None
    assert Records(records, "now", resume=False).outcome_of(kept) is None
    assert Records(records, "another version", resume=True).outcome_of(kept) is None
    write(kept.path, CASE | {"seed": 1})
    assert Records(records, "now", resume=True).outcome_of(kept) is None, "the file has changed"
    assert Records(records, "now", resume=True).outcome_of(Kept(tmp_path / "missing.json")) is None


def test_an_interrupted_replay_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[str] = []

    def said(_judge: Judge, kept: Kept, _reverts: object) -> Replayed:
        if kept.path.stem == "c" and "c" not in replayed and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        replayed.append(kept.path.stem)
        return Replayed(kept.name, Outcome.FAILED if kept.path.stem == "a" else Outcome.PASSED)

    interrupted: list[bool] = []
    monkeypatch.setattr(command, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(command, "replay_kept", said)
    for name in "abcd":
        write(tmp_path / f"{name}.json", CASE)
    arguments = ["replay", tmp_path, *HERE, tmp_path / "records.jsonl"]
    first = tefuzz(*arguments)
    assert first.exit_code == 130
    assert first.stdout.endswith("2 of 4 cases: 1 PASSED, 1 FAILED\nTo go on: the same command with --resume\n")
    second = tefuzz(*arguments, "--resume")
    assert replayed == ["a", "b", "c", "d"], "nothing is replayed twice"
    assert "2 cases done before" in second.stdout
    assert f"[3/4] PASSED  {tmp_path / 'c.json'}" in second.stdout
    assert second.stdout.endswith("4 cases: 3 PASSED, 1 FAILED\n")
    assert second.exit_code == 1, "what failed before the interruption counts"
    tefuzz(*arguments)
    assert replayed == [*"abcdabcd"], "without --resume it begins anew"


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
    def said(_judge: Judge, kept: Kept, _reverts: object) -> Replayed:
        return Replayed(kept.name, Outcome(kept.path.stem), "because\nof this")

    monkeypatch.setattr(command, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(command, "replay_kept", said)
    for outcome in outcomes.split():
        write(tmp_path / f"{outcome}.json", CASE)
    result = tefuzz("replay", tmp_path, *HERE, tmp_path / "records.jsonl")
    assert result.exit_code == code
    assert all(f"] {outcome:<7} " in result.stdout and f"1 {outcome}" in result.stdout for outcome in outcomes.split())
    assert "    because\n    of this\n" in result.stdout


def test_the_middle_of_a_long_detail_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detail = "\n".join(f"line {number}" for number in range(40))
    monkeypatch.setattr(command, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(command, "replay_kept", lambda *_: Replayed("x", Outcome.FAILED, detail))
    file = write(tmp_path / "x.json", CASE)
    lines = tefuzz("replay", file, *HERE, tmp_path / "records.jsonl").stdout.splitlines()[2:-1]
    assert lines[0] == "    line 0"
    assert lines[5] == "    ... (30 lines left out)"
    assert lines[-1] == "    line 39"
    assert len(lines) == 11


def test_the_whole_corpus_is_as_it_says(tmp_path: Path) -> None:
    result = tefuzz("replay", *HERE, tmp_path / "records.jsonl")
    assert result.exit_code == 0, result.output
    assert "FIXED" in result.stdout
    assert "v1-checkpoint-recompute" in result.stdout, "known issues are replayed too"


def test_a_revert_fails_its_own_regression_and_leaves_known_issues_out(tmp_path: Path) -> None:
    result = tefuzz("replay", REGRESSIONS, "--revert", "fuser", *HERE, tmp_path / "records.jsonl")
    assert result.exit_code == 1, result.output
    assert "THIS REPLAY HAS TO FAIL" in result.stdout
    assert "1 FAILED" in result.stdout
    assert "KNOWN" not in result.stdout
