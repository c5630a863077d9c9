"""The nightly run, in full but short, and the decisions of its steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.ci import BucketResult, RunResult
from harness.corpus import REGRESSIONS, load_regression
from harness.exit_codes import ExitCode
from harness.nightly import ROOT, Nightly, Plan, worst
from harness.profiles import PROFILES
from harness.recorder import read_records

HERE = Path(__file__).parent
OPEN = """#!/bin/sh
test -s "$1/report.md" || exit 9
echo "$1" >> {opened}
"""


@dataclass(frozen=True)
class Night:
    """A finished night."""

    plan: Plan
    code: ExitCode
    said: list[str]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A night of some seconds with a planted bug, in a CI."""
    directory = tmp_path_factory.mktemp("night")
    opener = directory / "open"
    opener.write_text(OPEN.format(opened=directory / "opened"))
    opener.chmod(0o755)
    plan = Plan(
        state=directory / "state",
        output=directory / "output",
        seconds=30,  # the imports are within it
        workers="0",
        device="cpu",
        max_new=1,
        open_command=(str(opener),),
        pytest_options=("-k", "test_fuser and 0"),
        kept=(str(REGRESSIONS / "fuser.json"),),
    )
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            patch.delenv(name)
        patch.setenv("CI", "true")
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("PYTEST_PLUGINS", "planted")
        code = Nightly(plan, said.append).run()
    return Night(plan, code, said)


def test_every_step_is_done_and_what_was_found_decides(night: Night) -> None:
    text = "\n".join(night.said)
    assert night.code is ExitCode.FINDINGS, text
    assert "nightly: replay: ok" in night.said, text
    assert "nightly: fuzz: exit code 1" in night.said
    for step in ("minimise", "index"):
        assert f"nightly: {step}: ok" in night.said, text
    assert "1 FIXED" in (night.plan.output / "replay.log").read_text()


def test_a_ci_is_no_reason_to_repeat_the_same_cases(night: Night) -> None:
    """Hypothesis would derandomise and drop its database."""
    assert "profile nightly, seed " in (night.plan.output / "fuzz.log").read_text()
    assert any(path.is_file() for path in (night.plan.state / "hypothesis").rglob("*")), "failures are kept"


def test_what_is_kept_and_uploaded(night: Night) -> None:
    plan = night.plan
    found = [load_regression(path) for path in plan.corpus.glob("*.json")]
    assert {entry.bucket for entry in found} == {"planted/train/linear/nobody/none", "planted/train/other/nobody/none"}
    assert all(len(entry.case.layers) == 1 for entry in found), "shrunk: after one bucket it went on to the other"
    assert list(read_records(plan.output / "run"))
    assert "planted" in (plan.output / "junit.xml").read_text()
    assert (plan.output / "reports" / "index.html").exists()


def test_at_most_so_many_new_buckets_are_opened(night: Night) -> None:
    (opened,) = [path.name for path in night.plan.opened.iterdir()]
    folder = night.plan.output / "reports" / opened
    assert (night.plan.output.parent / "opened").read_text() == f"{folder}\n"
    assert "There is no full report." in (folder / "report.md").read_text(), "the bug is planted in the fuzz run only"
    assert (folder / "case.json").exists()
    assert "nightly: 1 more new buckets wait for the next night" in night.said


def bucket(number: int) -> BucketResult:
    return BucketResult(f"check/train/{number}/nobody/none", None, 1, 1.0, "text", None)


def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opener: str, buckets: int) -> list[list[str]]:
    """The buckets that three nights open, without running anything."""
    monkeypatch.setattr(
        "harness.nightly.read_result", lambda _run: RunResult(9, tuple(map(bucket, range(buckets))), (), None)
    )
    monkeypatch.setattr(Nightly, "_tefuzz", lambda self, name, *_: self.codes.update({name: 0}))
    plan = Plan(tmp_path / "state", tmp_path / "output", seconds=1, max_new=2, open_command=(opener,))
    plan.opened.mkdir(parents=True)
    plan.output.mkdir()
    opened = []
    for _ in range(3):
        said: list[str] = []
        night = Nightly(plan, said.append)
        night._report(tmp_path)
        opened.append([line.split("/")[2] for line in said if line.startswith("nightly: new: ")])
        assert night.codes.pop("index") == 0
        shutil.rmtree(plan.output / "reports", ignore_errors=True)
    return opened


def test_a_bucket_that_was_opened_comes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nights(tmp_path, monkeypatch, "true", 3) == [["0", "1"], ["2"], []]


def test_a_bucket_that_could_not_be_opened_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nights(tmp_path, monkeypatch, "false", 3) == [["0", "1"]] * 3
    assert nights(tmp_path / "b", monkeypatch, "a-command-that-is-not-there", 1) == [["0"]] * 3


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], ExitCode.CLEAN),
        ([0, 4, 2], ExitCode.DRIFTED),
        ([1, 4], ExitCode.FINDINGS),
        ([1, 3], ExitCode.OWN_ERROR),
        ([0, -9], ExitCode.OWN_ERROR),
        ([127], ExitCode.OWN_ERROR),
    ],
)
def test_the_most_severe_code_decides(codes: list[int], expected: ExitCode) -> None:
    assert worst(codes) is expected


def test_in_a_ci_the_profile_is_random_and_keeps_its_database(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, hypothesis\n"
        "from hypothesis.database import DirectoryBasedExampleDatabase\n"
        "from harness.profiles import PROFILES, load\n"
        "plain = hypothesis.settings.default\n"
        "load(PROFILES['nightly'], DirectoryBasedExampleDatabase(pathlib.Path(sys.argv[1])))\n"
        "now = hypothesis.settings.default\n"
        "print(plain.derandomize, plain.database, now.derandomize, type(now.database).__name__)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=os.environ | {"CI": "true"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "True None False DirectoryBasedExampleDatabase\n", "the first two are what CI does to others"
    assert PROFILES["nightly"].fixed_seed is None
