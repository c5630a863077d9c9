"""``pytest fuzz/`` when cases crash and when the user presses Ctrl-C."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.case import LayerNorm, load_case
from harness.recorder import in_flight, read_records
from tests.isolation.test_isolation import DIRECTORY

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 240.0


@dataclass
class Run:
    """A fuzz run in a session of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def directory(self) -> Path | None:
        named = re.search(r"records in (\S+)", self.output)
        return ROOT / named[1] if named else None


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
        if run.directory is not None:
            shutil.rmtree(run.directory, ignore_errors=True)


def start(tmp_path: Path, *options: str, **variables: str) -> Run:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    kept = {"HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis"), "TEFUZZ_CORPUS": str(tmp_path / "corpus")}
    log = tmp_path / "log"
    # A shell starts what runs in its background with interrupts ignored, and that would be inherited.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "fuzz/", "-n", "2", *options],
            cwd=ROOT,
            env=environment | kept | {"COLUMNS": "200"} | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    signal.signal(signal.SIGINT, before)
    return Run(process, log)


def test_a_crash_is_found_and_shrunk_once_and_the_run_goes_on(tmp_path: Path, runs: list[Run]) -> None:
    faults = {"PYTHONPATH": str(DIRECTORY), "TEFUZZ_TEST_FAULT": "segfault"}
    options = ("-k", "test_torch and (0 or 1)", "--tefuzz-profile", "ci-short", "--hypothesis-seed", "1")
    runs.append(start(tmp_path, *options, **faults))
    (run,) = runs
    assert run.process.wait(PATIENCE) == 1, run.output
    assert "1 failed, 1 passed" in run.output, "one test shrinks the bucket, the other counts it and goes on"
    assert "CaseCrashed: The case crashed its process by SIGSEGV." in run.output
    assert "replacing crashed worker" not in run.output
    assert re.search(r"FOUND: \d+ x crash/run/SIGSEGV-in-ctypes.__init__:string_at/thunder-with-torch/", run.output)
    assert run.directory is not None
    paths = list((run.directory / "failures").glob("*.json"))
    assert paths
    for path in paths:  # a bucket for each recipe
        assert f"replay: tefuzz run {path}" in run.output
        assert load_case(path).layers == (LayerNorm(),), "shrunk, through many crashes"
    records = list(read_records(run.directory))
    assert {record.bucket is None for record in records} == {True, False}
    assert in_flight(run.directory) == []


def test_ctrl_c_ends_the_run_with_what_was_found(tmp_path: Path, runs: list[Run]) -> None:
    options = ("-k", "test_fuser", "--tefuzz-profile", "nightly", "--hypothesis-seed", "12")
    runs.append(start(tmp_path, *options, "--tefuzz-revert", "fuser"))
    (run,) = runs
    deadline = time.monotonic() + PATIENCE
    while run.directory is None or not list(run.directory.glob("failures/*.json")):
        assert time.monotonic() < deadline, run.output
        assert run.process.poll() is None, run.output
        time.sleep(0.1)
    started = time.monotonic()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(PATIENCE) == pytest.ExitCode.INTERRUPTED, run.output
    # 2 s on an idle machine; xdist alone would take 10 s there.
    assert time.monotonic() - started < 40
    assert re.search(r"FOUND: \d+ x exception/backward/", run.output)
    for path in (run.directory / "failures").glob("*.json"):
        load_case(path)
        assert f"replay: tefuzz run {path} --revert fuser" in run.output
    counted = re.search(r"^(\d+) cases \(", run.output, re.MULTILINE)
    assert counted is not None
    assert int(counted[1]) == len(list(read_records(run.directory))) > 0
    assert "INTERNALERROR" not in run.output
    assert "Traceback" not in run.output
