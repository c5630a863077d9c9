"""Cases that crash, abort, hang, exit or exhaust memory, for real, and the process that outlives them."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from harness.case import Case, Jit, LayerNorm, Linear, replace
from harness.device import DeviceError
from harness.isolation import (
    PROCESS_FINDINGS,
    IsolatedRunner,
    IsolationError,
    ProcessFinding,
    ReportedVerdict,
    Settings,
    _Child,
)
from harness.judge import IsolatedJudge

DIRECTORY = Path(__file__).parent / "faults"
GOOD = Case(layers=(Linear(out_features=32),), jit=Jit(executor="torch"))
BAD = replace(GOOD, layers=(LayerNorm(),))
SETTINGS = Settings(case_seconds=4.0, case_memory=3 * 2**30)

_spec = importlib.util.spec_from_file_location("faults_of_tests", DIRECTORY / "sitecustomize.py")
assert _spec is not None
assert _spec.loader is not None
_faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_faults)
FAULTS = list(_faults.FAULTS)

# Fault -> check, where, words of the message. The frames are those of the fault.
EXPECTED = {
    "segfault": ("crash", "SIGSEGV in ctypes.__init__:string_at", "Segmentation fault"),
    "abort": ("abort", "SIGABRT in faults.sitecustomize:forward", "Aborted"),
    "hang": ("hang", "no end", "The case did not end in 4 s."),
    "hang-with-the-gil": ("hang", "no end", "in hang_with_the_gil"),
    "torch-memory": ("out of memory", "RuntimeError: ", "thunder with torch ran out of memory in forward of step 0"),
    "python-memory": ("out of memory", "MemoryError: ", "in python_memory"),
    "killed": ("out of memory", "SIGKILL", "how the kernel ends a process that uses up the memory"),
    "system-exit": ("exit", "SystemExit", "SystemExit: the subject leaves"),
    "exit": ("exit", "status", "The case left its process with status 7."),
    "device-error": ("device error", "RuntimeError: CUDA error", "an illegal memory access"),
}


def bad(fault: str) -> Case:
    return replace(BAD, seed=_faults.SEEDS * (FAULTS.index(fault) + 1))


@pytest.fixture(scope="module")
def with_faults() -> object:
    """New processes of this test have the faults in them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(DIRECTORY))
    patch.setenv("TEFUZZ_TEST_FAULT", "by-seed")
    yield
    patch.undo()


class Met:
    """What one runner gave for a good case, all bad ones, and good ones in between."""

    def __init__(self, runner: IsolatedRunner) -> None:
        self.good = [runner.run(GOOD)]
        self.bad: dict[str, ReportedVerdict] = {}
        self.seconds: dict[str, float] = {}
        for fault in EXPECTED:
            runner.ready()
            started = time.monotonic()
            self.bad[fault] = runner.run(bad(fault))
            self.seconds[fault] = time.monotonic() - started
        self.good.append(runner.run(GOOD))
        self.processes = runner.processes


@pytest.fixture(scope="module")
def met(with_faults: object) -> Met:
    with IsolatedRunner(SETTINGS) as runner:
        return Met(runner)


@pytest.mark.parametrize("fault", EXPECTED)
def test_what_ends_the_process_is_a_finding(met: Met, fault: str) -> None:
    check, where, words = EXPECTED[fault]
    (finding,) = met.bad[fault].findings
    assert isinstance(finding, ProcessFinding)
    assert type(finding) is PROCESS_FINDINGS[check]
    assert (finding.bucket.check, finding.bucket.stage) == (check, "run")
    assert finding.bucket.where.startswith(where)
    assert finding.bucket.subject == "thunder with torch"
    assert words in finding.message
    assert met.bad[fault].case == bad(fault)
    assert f"case:   {bad(fault).id}" in str(finding)


@pytest.mark.parametrize("fault", ["segfault", "abort", "hang", "hang-with-the-gil"])
def test_the_stack_is_part_of_it(met: Met, fault: str) -> None:
    message = met.bad[fault].findings[0].message
    assert "thread 0x" in message.lower()
    assert "(most recent call first)" in message
    assert 'subjects/base.py", line' in message


def test_the_next_case_runs_in_a_new_process(met: Met) -> None:
    assert met.processes == 1 + len(EXPECTED)
    assert [verdict.findings for verdict in met.good] == [(), ()]
    assert met.good[0].fingerprint == met.good[1].fingerprint
    assert met.good[0].memory > 2**20


def test_a_hang_ends_at_its_limit(met: Met) -> None:
    for fault in ("hang", "hang-with-the-gil"):
        # The watchdog of the child, not the grace of the parent.
        assert SETTINGS.case_seconds <= met.seconds[fault]


def test_what_comes_and_goes_is_a_finding_of_its_own(with_faults: object) -> None:
    flaky = bad("second-time")
    with IsolatedRunner(SETTINGS) as runner:
        judge = IsolatedJudge.of(runner, confirms=True)
        assert judge.judge(flaky).unexplained == ()
        (finding,) = judge.judge(flaky).unexplained
        assert type(finding).__name__ == "VerdictNotDeterministic"
        assert finding.bucket.check == "not deterministic"
        assert finding.bucket.where == "exception then nothing"
        assert "first exception/" in finding.message
        assert "then in a new process no finding" in finding.message
        assert runner.processes == 2


def test_a_stopped_child_is_killed(with_faults: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the watchdog of the child runs then; and what runs in the parent may be interrupted."""
    monkeypatch.setattr("harness.isolation.GRACE_SECONDS", 0.5)
    with IsolatedRunner(SETTINGS) as runner:
        runner.run(GOOD)
        child = runner._child
        assert child is not None
        pid = child._process.pid
        os.killpg(pid, signal.SIGSTOP)
        (finding,) = runner.run(GOOD, seconds=0.5).findings
        assert finding.bucket.check == "hang"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_self: _Child, _ask: object) -> None:
        raise KeyboardInterrupt

    child = object.__new__(_Child)
    closed: list[bool] = []
    monkeypatch.setattr(_Child, "ready", lambda _self: None)
    monkeypatch.setattr(_Child, "run", interrupted)
    monkeypatch.setattr(_Child, "close", lambda _self: closed.append(True))
    runner = IsolatedRunner(SETTINGS)
    runner._child = child
    with pytest.raises(KeyboardInterrupt):
        runner.run(GOOD)
    assert closed == [True]
    assert runner._child is None, "what the child would have said next is not taken for the next case"


def test_a_device_that_is_not_there_is_refused() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with IsolatedRunner(Settings(device="cuda")) as runner, pytest.raises(DeviceError, match="no CUDA device"):
        runner.ready()


def test_a_child_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('this torch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with IsolatedRunner(Settings()) as runner, pytest.raises(IsolationError, match="this torch is broken"):
        runner.ready()
