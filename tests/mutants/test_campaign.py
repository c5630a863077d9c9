"""The processes of a campaign: results, crashes, hangs, Ctrl-C. Invented commands stand in for the search."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness.case import Case, Linear, pretty_json
from harness.mutants import campaign
from harness.mutants.base import TORCH, Mutant
from harness.mutants.campaign import Command, Files, Limits, run_campaign
from harness.mutants.results import Result

LIMITS = Limits(max_examples=7, time_box=60)
CASE = Case(layers=(Linear(out_features=16),))


def invented(name: str) -> Mutant:
    return Mutant(name=name, title="t", target="m:f", changes=(("a", "b"),), pairs=(TORCH,), symptom="s")


def python(script: str) -> Command:
    """A process that runs ``script``, in which ``directory`` and ``name`` are known."""

    def command(mutant: Mutant, limits: Limits, files: Files) -> list[str]:
        given = (
            f"import os, pathlib, time; name = {mutant.name!r}; directory = pathlib.Path({str(files.directory)!r})\n"
        )
        return [sys.executable, "-c", given + script]

    return command


def run(command: Command, *names: str, workers: int = 1, limits: Limits = LIMITS) -> list[Result]:
    results: list[Result] = []
    run_campaign([invented(name) for name in names], limits, workers, command, results.append)
    return results


def test_a_result_that_was_left_is_reported() -> None:
    left = Result(mutant="a-b", digest="d", outcome="killed", by="output", max_examples=7, examples=3, case=CASE)
    script = f"(directory / 'result.json').write_text({msgspec.json.encode(left).decode()!r})"
    assert run(python(script), "a-b") == [left]


def test_a_crash_kills_the_mutant_and_the_case_is_kept() -> None:
    script = f"(directory / 'in-flight.json').write_text({pretty_json(CASE)!r}); os.abort()"
    (result,) = run(python(script), "a-b")
    assert (result.outcome, result.by, result.case) == ("killed", "crash", CASE)
    assert (result.mutant, result.digest, result.max_examples) == ("a-b", invented("a-b").digest, 7)


def test_a_hang_kills_the_mutant_and_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(campaign, "HANG_SECONDS", 0.2)
    pid = tmp_path / "pid"
    script = f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    (result,) = run(python(script), "a-b", limits=Limits(max_examples=7, time_box=1.0))
    assert (result.outcome, result.by, result.case) == ("killed", "hang", None)
    assert_gone(pid)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise RuntimeError('not applied')", "RuntimeError: not applied"),
        ("pass", "the process ended with status 0"),
        ("(directory / 'result.json').write_text('{')", "the process ended with status 0"),
    ],
)
def test_a_process_that_leaves_no_result_is_an_error(script: str, words: str) -> None:
    (result,) = run(python(script), "a-b")
    assert (result.outcome, result.by) == ("error", words)


def test_all_are_searched_for_and_no_more_than_workers_at_a_time(tmp_path: Path) -> None:
    script = f"""
path = pathlib.Path({str(tmp_path)!r}) / name
path.touch()
time.sleep(0.3)
print(len(list(path.parent.iterdir())))
path.unlink()
raise SystemExit(1)
"""
    results = run(python(script), *(f"mutant-{index}" for index in range(4)), workers=2)
    assert {result.mutant for result in results} == {f"mutant-{index}" for index in range(4)}
    assert {int(result.by) for result in results} <= {1, 2}


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    script = f"""
path = pathlib.Path({str(tmp_path)!r}) / name
path.write_text(str(os.getpid()))
if name == "first-one":
    while not (path.parent / "second-one").exists():
        time.sleep(0.05)
else:
    time.sleep(600)
"""

    def interrupt(_result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_campaign([invented("first-one"), invented("second-one")], LIMITS, 2, python(script), interrupt)
    assert_gone(tmp_path / "second-one")


def assert_gone(pid: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(int(pid.read_text()), 0)
        except (ProcessLookupError, ValueError):
            return
        time.sleep(0.05)
    pytest.fail("the process still runs")
