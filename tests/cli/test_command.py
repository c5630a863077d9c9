"""The command as a whole: help, imports, interruption and its own errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands import replay, run, stats
from harness.device import DeviceError, Environment
from harness.judge import Judge, Judgement
from harness.replay import Kept, Outcome, Replayed
from tests.cli.support import CASE, ENVIRONMENT, judgement, tefuzz, write


@pytest.fixture
def _no_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "start", lambda _device: ENVIRONMENT)
    monkeypatch.setattr(replay, "start", lambda _device: ENVIRONMENT)


@pytest.mark.parametrize("command", main.commands)
def test_help_teaches_by_example(command: str) -> None:
    result = tefuzz(command, "--help")
    assert result.exit_code == 0
    assert f"\n    tefuzz {command}" in result.stdout
    assert "Exit codes" in result.stdout


def test_help_lists_the_commands() -> None:
    result = tefuzz("--help")
    assert result.exit_code == 0
    assert set(main.commands) == {
        "doctor",
        "run",
        "reduce",
        "bisect",
        "campaign",
        "replay",
        "corpus",
        "report",
        "stats",
        "mutants",
        "nightly",
    }
    assert all(f"\n  {command} " in result.stdout for command in main.commands)


def test_drawing_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom harness.cli import main\nmain(['stats', '-n', '8'], standalone_mode=False)\n"
        "print([name for name in ('torch', 'thunder', 'transformer_engine') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("8 cases drawn")
    assert result.stdout.endswith("\n[]\n")


@pytest.mark.usefixtures("_no_subjects")
def test_an_interrupted_run_says_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([judgement(finds=True), judgement()])

    def judge(_self: Judge, _case: object) -> Judgement:
        answer = next(answers, None)
        if answer is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(Judge, "judge", judge)
    paths = [write(tmp_path / f"{index}.json", CASE) for index in range(4)]
    result = tefuzz("run", "--in-process", *paths)
    assert result.exit_code == 130
    assert f"{paths[1]}: clean" in result.stdout
    assert str(paths[2]) not in result.stdout
    assert result.stdout.endswith("2 of 4 cases run: 1 with findings, 0 with known issues only\n")


@pytest.mark.usefixtures("_no_subjects")
def test_an_interrupted_replay_says_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replay_kept(_judge: Judge, kept: Kept, _reverts: object) -> Replayed:
        if kept.path.stem == "1":
            raise KeyboardInterrupt
        return Replayed(kept.name, Outcome.PASSED)

    monkeypatch.setattr(replay, "replay_kept", replay_kept)
    for index in range(3):
        write(tmp_path / f"{index}.json", CASE)
    result = tefuzz("replay", tmp_path, "-n", "0", "--records", tmp_path / "records.jsonl")
    assert result.exit_code == 130
    assert "\n1 of 3 cases: 1 PASSED\n" in result.stdout


def test_interrupted_drawing_says_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(_strategy: object, _count: int, _seed: int, drawn: list[frozenset[str]]) -> None:
        if drawn:
            raise KeyboardInterrupt
        drawn.append(frozenset({"layer:Linear"}))

    monkeypatch.setattr(stats, "_draw", draw)
    result = tefuzz("stats")
    assert result.exit_code == 130
    assert "1 100.00%  layer:Linear" in result.stdout


def test_an_interrupt_before_the_first_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_device: str) -> Environment:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "start", start)
    assert tefuzz("run", "--in-process", write(tmp_path / "case.json", CASE)).exit_code == 130


@pytest.mark.usefixtures("_no_subjects")
def test_an_error_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(_self: Judge, _case: object) -> Judgement:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Judge, "judge", judge)
    result = tefuzz("run", "--in-process", write(tmp_path / "case.json", CASE))
    assert result.exit_code == 3
    assert "ZeroDivisionError: ours" in result.stderr
    assert "an error of tefuzz itself" in result.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DeviceError("no CUDA: run with --tefuzz-device cpu."), "run with --device cpu."),
        (ModuleNotFoundError("No module named 'thunder'", name="thunder"), "thunder is not installed. Install"),
    ],
)
def test_subjects_that_cannot_be_used(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def activate(_choice: str) -> Environment:
        raise error

    monkeypatch.setattr("harness.commands.common.activate", activate)
    result = tefuzz("doctor")
    assert result.exit_code == 2
    assert message in result.stderr
