"""Every file of ``corpus/regressions`` is silent with its fix, fails without it, and says why it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.corpus import CORPUS, HABITS, REGRESSIONS, case_files, load_regression, parse_regression, regression_json
from harness.device import activate
from harness.fixes import FIXES, reverted
from harness.judge import Judge
from harness.replay import Outcome, replay_file

FILES = case_files([REGRESSIONS])


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.of(activate())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_silent_with_the_fix_and_failing_without(path: Path, judge: Judge) -> None:
    revert = load_regression(path).revert
    silent = replay_file(judge, path)
    assert silent.outcome is (Outcome.PASSED if revert is None else Outcome.FIXED), silent.detail
    if revert is not None:
        with reverted([revert]):
            assert replay_file(judge, path, [revert]).outcome is Outcome.FAILED


def test_each_file_says_why_and_no_case_is_there_twice() -> None:
    entries = [load_regression(path) for path in (*FILES, *case_files([HABITS]))]
    assert all(entry.why for entry in entries)
    cases = [load_regression(path).case.id for path in case_files([CORPUS])]
    assert len(set(cases)) == len(cases)


def test_habits_are_many_and_written_for_readers() -> None:
    """``tests/corpus/test_replay.py`` replays them: they pass, or are known issues."""
    entries = {path: load_regression(path) for path in case_files([HABITS])}
    assert len(entries) >= 40
    for path, entry in entries.items():
        assert path.read_text() == regression_json(entry), "as tefuzz would write it, so that diffs stay small"
        assert (entry.revert, entry.bucket) == (None, None)
        assert entry.why.endswith(".")
        assert entry.case.input.features <= 64, "a replay has to stay cheap"
    executors = [entry.case.jit.executor if entry.case.jit else "fuser" for entry in entries.values()]
    assert set(executors) == {"transformer_engine", "transformer_engine_v1", "torch", "fuser"}


def test_every_fix_has_a_regression() -> None:
    assert set(FIXES) <= {load_regression(path).revert for path in FILES}


def test_a_bare_case_is_a_regression_without_a_reason() -> None:
    bare = parse_regression(b'{"schema": 1, "layers": [{"layer": "rms_norm"}]}')
    assert (bare.why, bare.revert) == ("", None)
    wrapped = parse_regression(b'{"why": "w", "case": {"schema": 1, "layers": [{"layer": "rms_norm"}]}}')
    assert wrapped.case == bare.case


def test_directories_are_searched_and_nothing_is_replayed_twice(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    outer, inner = tmp_path / "b.json", tmp_path / "inner" / "a.json"
    for path in (outer, inner, tmp_path / "notes.md"):
        path.touch()
    assert case_files([inner, tmp_path, tmp_path / "missing.json"]) == [inner, outer, tmp_path / "missing.json"]
