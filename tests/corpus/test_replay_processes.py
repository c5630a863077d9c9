"""Replaying in processes: one that crashes, hangs or ends is an outcome, and the others go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import replay_processes
from harness.replay import Kept, Outcome, Replayed
from harness.replay_processes import replay_in_processes
from tests.corpus import replaying_process

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _light_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # where a process finds the module of its function
    monkeypatch.setattr(replay_processes, "_work", replaying_process.work)


def replayed(*names: str, processes: int = 2, hang_seconds: float = 60) -> dict[str, Replayed]:
    planned = [Kept(Path(name)) for name in names]
    return {kept.name: result for kept, result in replay_in_processes(planned, processes, "cpu", (), hang_seconds)}


def test_a_process_is_used_again() -> None:
    done = replayed("a", "b", "c", processes=1)
    assert [result.outcome for result in done.values()] == [Outcome.PASSED] * 3
    assert len({result.detail for result in done.values()}) == 1


def test_crashes_are_findings_and_the_others_go_on() -> None:
    done = replayed("a", "segfault", "b", "exit", "c", "d")
    assert done["segfault"] == Replayed("segfault", Outcome.FAILED, "crash: its process was ended by SIGSEGV")
    assert done["exit"] == Replayed("exit", Outcome.FAILED, "crash: its process ended with status 7")
    assert {done[name].outcome for name in "abcd"} == {Outcome.PASSED}


def test_a_hang_is_a_finding() -> None:
    done = replayed("hang", "a", hang_seconds=8, processes=1)
    assert done["hang"].outcome is Outcome.FAILED
    assert done["hang"].detail.startswith("hang: no answer after ")
    assert done["a"].outcome is Outcome.PASSED


def test_a_process_that_cannot_start_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_processes, "_work", replaying_process.does_not_start)
    with pytest.raises(RuntimeError, match="a process of the replay ended with status 1 before it could replay"):
        replayed("a")


def test_no_process_outlives_the_replay() -> None:
    results = replay_in_processes([Kept(Path("a")), Kept(Path("hang"))], 2, "cpu", ())
    _, first = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first.detail), 0)
