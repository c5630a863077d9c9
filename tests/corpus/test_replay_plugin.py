"""``pytest fuzz/ --tefuzz-replay``: outcomes, exit codes, and going on after an interruption."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.corpus import REGRESSIONS
from harness.exit_codes import ExitCode
from harness.known_issues import DEFAULT_FILE
from harness.replay import Outcome
from harness.replay_plugin import PROPERTY, ReplaySession

ROOT = Path(__file__).parents[2]
HIDDEN = DEFAULT_FILE.parent / "known" / "te-ops-parameters-hidden-from-start.json"

INTERRUPTING = """
import os
import harness.replay_plugin as plugin

real = plugin.replay

def replay(judge, kept, reverts):
    if kept.path.stem == os.environ.get("INTERRUPT_AT"):
        raise KeyboardInterrupt
    with open(os.environ["REPLAYED"], "a") as file:
        file.write(kept.path.stem + "\\n")
    return real(judge, kept, reverts)

plugin.replay = replay
"""


def pytest_fuzz(directory: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Replay what is in ``directory / "kept"``."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "fuzz/", "-n", "0", "-v"),
            *("--tefuzz-replay", str(directory / "kept"), "--tefuzz-records", str(directory / "records.jsonl")),
            *options,
        ],
        cwd=ROOT,
        env=usual
        | {"PYTEST_PLUGINS": "interrupting", "PYTHONPATH": str(directory), "REPLAYED": str(directory / "replayed")}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_outcomes_and_going_on_after_an_interruption(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    shutil.copy(REGRESSIONS / "fuser.json", kept / "a.json")
    (kept / "b.json").write_text('{"schema": 99}')
    shutil.copy(HIDDEN, kept / "c.json")
    first = pytest_fuzz(tmp_path, INTERRUPT_AT="c")
    assert first.returncode == pytest.ExitCode.INTERRUPTED, first.stdout
    assert "2 of 3 cases: 1 FIXED, 1 ERROR\nTo go on: the same command with --tefuzz-resume" in first.stdout
    second = pytest_fuzz(tmp_path, "--tefuzz-resume")
    assert (tmp_path / "replayed").read_text().split() == ["a", "b", "c"], "nothing is replayed twice"
    assert second.returncode == ExitCode.BAD_INPUT, second.stdout
    assert "replaying 3 cases" in second.stdout
    for name, outcome in (("a", "FIXED"), ("b", "ERROR"), ("c", "KNOWN")):
        assert any(f"kept/{name}.json] {outcome} " in line for line in second.stdout.splitlines()), second.stdout
    assert "b.json: at $.schema: version 99 is not version 1" in second.stdout
    assert "Install a newer tefuzz" in second.stdout
    assert "3 of 3 cases: 1 FIXED, 1 KNOWN, 1 ERROR\n" in second.stdout
    assert "test_thunder" not in second.stdout, "nothing is drawn"


def report(outcome: Outcome | None, when: str = "call", *, failed: bool = False) -> pytest.TestReport:
    properties = [] if outcome is None else [(PROPERTY, str(outcome))]
    return pytest.TestReport(
        "n", ("f", 1, "d"), {}, "failed" if failed else "passed", None, when, user_properties=properties
    )  # type: ignore[arg-type]  # xdist has a `when` of its own


@pytest.mark.parametrize(
    ("reports", "status", "code"),
    [
        ([report(Outcome.FIXED), report(Outcome.KNOWN), report(None, "setup")], 0, ExitCode.CLEAN),
        ([report(Outcome.DRIFTED, failed=True)], 1, ExitCode.DRIFTED),
        ([report(Outcome.DRIFTED, failed=True), report(Outcome.FAILED, failed=True)], 1, ExitCode.FINDINGS),
        ([report(Outcome.CRASHED, failed=True), report(Outcome.FAILED, failed=True)], 1, ExitCode.OWN_ERROR),
        ([report(Outcome.FIXED), report(None, "???", failed=True)], 1, ExitCode.FINDINGS),
        ([report(None, "setup", failed=True)], 1, ExitCode.OWN_ERROR),
        ([report(Outcome.FAILED, failed=True)], 2, pytest.ExitCode.INTERRUPTED),
    ],
    ids=["clean", "drifted", "failed", "crashed", "a worker died", "a test that did not start", "interrupted"],
)
def test_exit_codes(reports: list[pytest.TestReport], status: int, code: int) -> None:
    replaying = object.__new__(ReplaySession)
    replaying._outcomes = []
    for each in reports:
        replaying.pytest_runtest_logreport(each)
    session = SimpleNamespace(exitstatus=status)
    replaying.pytest_sessionfinish(session, status)  # type: ignore[arg-type]
    assert session.exitstatus == code
