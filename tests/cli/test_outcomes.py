"""Commands that run cases: verdicts, buckets, reverts, known issues, and what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.corpus import REGRESSIONS, load_regression
from harness.device import activate
from harness.fixes import reverted
from harness.judge import Judge
from harness.known_issues import DEFAULT_FILE
from harness.recorder import Recorder
from harness.report.trial import Trial
from tests.cli.support import tefuzz

FUSER = REGRESSIONS / "fuser.json"
KNOWN = DEFAULT_FILE.parent / "known" / "te-ops-parameters-hidden-from-start.json"


def _bucket(recorder: Path) -> tuple[str, str]:
    """The bucket of ``FUSER`` without its fix, in full and as the name of the file that a fuzz run keeps."""
    judge = Judge.of(activate())
    with reverted(["fuser"]):
        verdict = judge.judge(load_regression(FUSER).case).verdict
    return str(verdict.findings[0].bucket), Recorder(recorder, "main").failure_path(verdict).stem


def test_run_finds_what_a_revert_brings_back(tmp_path: Path) -> None:
    bucket, digest = _bucket(tmp_path)
    clean = tefuzz("run", "--in-process", FUSER)
    assert clean.exit_code == 0, clean.output
    assert f"{FUSER}: clean\n  model: LayerNorm\n" in clean.stdout
    found = tefuzz("run", "--in-process", FUSER, "--revert", "fuser")
    assert found.exit_code == 1, found.output
    assert f"FOUND  {bucket} [{digest}]" in found.stdout
    assert tefuzz("run", "--in-process", FUSER).exit_code == 0, "the revert is taken back"


def test_expected_bucket(tmp_path: Path) -> None:
    for name in _bucket(tmp_path):
        assert tefuzz("run", "--in-process", FUSER, "--revert", "fuser", "--expect-bucket", name).exit_code == 1
        assert tefuzz("run", "--in-process", FUSER, "--expect-bucket", name).exit_code == 0, "clean is not the bucket"
    other = tefuzz("run", "--in-process", FUSER, "--revert", "fuser", "--expect-bucket", "0123456789")
    assert other.exit_code == 0, "findings in other buckets do not count"
    assert "nothing in the expected bucket 0123456789" in other.stdout


def test_reports_of_findings_and_of_known_issues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Trial(1, "seen: it", None), Trial(0, "seen: nothing", "it ends with status 0")])
    monkeypatch.setattr("harness.report.folder.run_program", lambda _program, _finding: next(answers))
    bucket, digest = _bucket(tmp_path)
    result = tefuzz("run", "--in-process", FUSER, KNOWN, "--revert", "fuser", "--report-dir", tmp_path / "out")
    assert result.exit_code == 1, "reports change no exit code"
    assert f"report: {tmp_path / 'out' / digest / 'report.html'} (its program shows the bug)" in result.stdout
    assert "(its program does not show the bug: it ends with status 0)" in result.stdout
    folders = sorted((tmp_path / "out").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"case.json", "repro.py", "report.md", "report.html"}
    assert bucket in (tmp_path / "out" / digest / "report.md").read_text()
    assert tefuzz("run", "--in-process", FUSER, "--report-dir", tmp_path / "none").exit_code == 0
    assert not (tmp_path / "none").exists(), "there is nothing to report"


def test_a_known_issue_is_said_and_clean() -> None:
    result = tefuzz("run", "--in-process", KNOWN, FUSER)
    assert result.exit_code == 0, result.output
    assert "te-ops-parameters-hidden-from-start: te.ops treats parameters" in result.stdout
    assert result.stdout.endswith("2 cases run: 0 with findings, 1 with known issues only\n")


def test_one_fix_reverted_in_two_ways_is_refused() -> None:
    result = tefuzz("run", "--in-process", FUSER, "--revert", "remat", "--revert", "remat-names")
    assert result.exit_code == 2
    assert "already reverted by 'remat'" in result.stderr


def test_doctor_names_the_release_that_has_a_missing_fix() -> None:
    healthy = tefuzz("doctor")
    assert healthy.exit_code == 0, healthy.output
    assert healthy.stdout.count(": present (") == 3
    assert "te-ops-parameters-hidden-from-start" in healthy.stdout
    with reverted(["fuser"]):
        ill = tefuzz("doctor")
    assert ill.exit_code == 1
    assert "fix fuser: MISSING: install transformer-engine 2.1 or newer" in ill.stdout
    assert ill.stdout.count(": present (") == 2


def test_doctor_says_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    assert tefuzz("doctor").stdout.count("NOT WRITABLE") == 2


def test_doctor_refuses_a_device_that_is_not_there() -> None:
    other = {"cpu": "cuda", "cuda": "cpu"}[activate().device]
    result = tefuzz("doctor", "--device", other)
    assert result.exit_code == 2
    assert f"device '{other}' was asked for" in result.stderr
