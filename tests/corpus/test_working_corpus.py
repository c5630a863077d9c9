"""The working corpus: what is kept, that nothing is lost, and how it is made small and joined."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import working_corpus
from harness.case import Case, Checkpoint, Dropout, LayerNorm, Linear, Step, load_case, pretty_json, replace
from harness.corpus import Regression, load_regression
from harness.recorder import in_flight, read_records
from harness.working_corpus import (
    WorkingCorpus,
    default_directory,
    merge,
    minimise,
    minimised,
    pairs,
    read_corpus,
    write_entry,
)
from tests.cli.support import tefuzz

LINEAR = Linear(out_features=64)
CASE = Case(layers=(LINEAR,))
LARGER = replace(CASE, layers=(LINEAR, LINEAR, LINEAR), seed=5)
DROPOUT = Case(layers=(LINEAR, Dropout()))
BOTH = Case(layers=(LINEAR, Dropout(), Checkpoint(body=(LayerNorm(),))), steps=(Step(), Step(mode="eval")))


def kept(directory: Path) -> list[str]:
    entries, problems = read_corpus(directory)
    assert problems == []
    assert all(path.name == f"{entry.case.id}.json" for path, entry in entries)
    return sorted(entry.case.id for _, entry in entries)


def ids(*cases: Case) -> list[str]:
    return sorted(case.id for case in cases)


def test_a_case_with_a_new_pair_is_kept_with_the_reason(tmp_path: Path) -> None:
    corpus = WorkingCorpus(tmp_path / "corpus")
    path = corpus.add(CASE, "te_v2")
    assert path is not None
    assert load_regression(path).case == CASE
    assert load_regression(path).why.startswith("te_v2 met ")
    assert corpus.add(replace(CASE, seed=1), "te_v2") is None, "the same features"
    added = corpus.add(DROPOUT, "te_v2")
    assert added is not None
    assert "layer:Dropout" in load_regression(added).why
    assert kept(tmp_path / "corpus") == ids(CASE, DROPOUT)


def test_what_earlier_runs_kept_is_not_new(tmp_path: Path) -> None:
    WorkingCorpus(tmp_path).add(BOTH, "te_v2")
    again = WorkingCorpus(tmp_path)
    assert again.add(replace(BOTH, seed=1), "te_v2") is None
    assert again.add(Case(layers=(Checkpoint(body=(LINEAR, LINEAR)),)), "te_v2") is not None


def test_of_a_bucket_the_smallest_case_is_kept(tmp_path: Path) -> None:
    corpus = WorkingCorpus(tmp_path)
    assert corpus.add(LARGER, "te_v2", "a/bucket") is not None
    assert corpus.add(replace(LARGER, seed=123456), "te_v2", "a/bucket") is None, "no smaller"
    path = corpus.add(CASE, "te_v2", "a/bucket")
    assert path is not None
    assert (load_regression(path).bucket, load_regression(path).why) == ("a/bucket", "te_v2 found a/bucket")
    assert kept(tmp_path) == ids(CASE), "the larger one of this run gave way"
    assert corpus.add(LARGER, "te_v2", "another/bucket") is not None


def test_the_file_of_another_process_is_left_alone(tmp_path: Path) -> None:
    WorkingCorpus(tmp_path).add(LARGER, "te_v2", "a/bucket")
    WorkingCorpus(tmp_path).add(CASE, "te_v2", "a/bucket")
    assert kept(tmp_path) == ids(CASE, LARGER)
    assert WorkingCorpus(tmp_path).add(LARGER, "te_v2", "a/bucket") is None


def entry(case: Case, bucket: str | None = None) -> Regression:
    return Regression(why="w", case=case, bucket=bucket)


def shown(entries: list[Regression]) -> set[tuple[str, str]]:
    return set().union(*(pairs(entry.case) for entry in entries if entry.bucket is None))


def test_minimising_loses_no_bucket_and_no_pair(tmp_path: Path) -> None:
    entries = [
        entry(CASE),
        entry(replace(CASE, seed=3)),
        entry(BOTH),
        entry(replace(BOTH, seed=70000)),
        entry(DROPOUT),
        entry(LARGER, "a/bucket"),
        entry(replace(LARGER, seed=66), "a/bucket"),
        entry(replace(CASE, seed=9), "another/bucket"),
    ]
    result = minimised(entries)
    assert shown(result) == shown(entries)
    assert {e.bucket for e in result} == {None, "a/bucket", "another/bucket"}
    assert [e.case for e in result if e.bucket == "a/bucket"] == [LARGER]
    assert replace(BOTH, seed=70000) not in [e.case for e in result]
    assert replace(CASE, seed=3) not in [e.case for e in result]
    assert minimised(result) == result


def test_minimising_removes_files_and_leaves_broken_ones(tmp_path: Path) -> None:
    for case in (CASE, replace(CASE, seed=3), BOTH, replace(BOTH, seed=3)):
        write_entry(tmp_path, entry(case))
    (tmp_path / "bare.json").write_text(pretty_json(DROPOUT))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    stale, fresh = tmp_path / ".a.json.1", tmp_path / ".b.json.2"
    for temporary in (stale, fresh):
        temporary.write_text("{")
    os.utime(stale, (time.time() - 4000,) * 2)
    before, after, problems = minimise(tmp_path)
    assert (before, after, len(problems)) == (5, 3, 1)
    assert "broken.json: not JSON" in str(problems[0])
    broken.unlink()
    assert kept(tmp_path) == ids(CASE, BOTH, DROPOUT)
    assert not stale.exists()
    assert fresh.exists(), "somebody may be writing it"


def test_corpora_are_joined_and_equal_cases_are_one(tmp_path: Path) -> None:
    here, there, elsewhere = tmp_path / "here", tmp_path / "there", tmp_path / "elsewhere"
    write_entry(here, entry(CASE))
    write_entry(there, entry(CASE, "a/bucket"))
    write_entry(there, entry(BOTH))
    write_entry(elsewhere, entry(BOTH))
    write_entry(elsewhere, entry(DROPOUT))
    (elsewhere / "foreign.json").write_text('{"name": "package"}')
    added, problems = merge(here, [there, elsewhere])
    assert added == 2
    assert [str(problem).startswith(f"{elsewhere / 'foreign.json'}: ") for problem in problems] == [True]
    assert kept(here) == ids(CASE, BOTH, DROPOUT)
    assert load_regression(here / f"{CASE.id}.json").bucket == "a/bucket", "the one that says more"
    assert kept(there) == ids(CASE, BOTH)
    assert merge(here, [there])[0] == 0


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "corpus"
    monkeypatch.setenv("TEFUZZ_CORPUS", str(directory))
    missing = tefuzz("corpus")
    assert missing.exit_code == 2
    assert f"{directory}: there is no such directory" in missing.stderr
    for case, bucket in ((CASE, None), (replace(CASE, seed=3), None), (LARGER, "a/bucket")):
        write_entry(directory, entry(case, bucket))
    for shown in (tefuzz("corpus"), tefuzz("corpus", "show", directory)):
        assert shown.exit_code == 0, shown.output
        assert f"{directory}: 3 cases, " in shown.stdout
        assert f"findings in 1 buckets:\n  a/bucket: {LARGER.id}\n" in shown.stdout
        assert "1 files can go" in shown.stdout
    assert tefuzz("corpus", "minimise").stdout == f"{directory}: 2 cases of 3 kept\n"
    other = tmp_path / "other"
    assert tefuzz("corpus", "merge", other, directory).stdout == f"{other}: 2 cases added\n"
    assert kept(other) == kept(directory)
    (directory / "broken.json").write_text("{")
    for arguments in (["show"], ["minimise"], ["merge", other, directory]):
        result = tefuzz("corpus", *arguments)
        assert result.exit_code == 2
        assert f"ERROR   {directory / 'broken.json'}: not JSON" in result.stderr
    assert tefuzz("corpus", "merge", other, tmp_path / "absent").exit_code == 2


def test_the_place_is_the_environments_or_the_checkouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(working_corpus.DIRECTORY_VARIABLE, raising=False)
    assert default_directory(Path("/checkout")) == Path("/checkout/.tefuzz/corpus")
    monkeypatch.setenv("TEFUZZ_CORPUS", "/elsewhere")
    assert default_directory(Path("/checkout")) == Path("/elsewhere")


@pytest.mark.parametrize("attempt", range(4))
def test_a_kill_loses_at_most_the_case_in_flight(attempt: int, tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.corpus.killed_while_fuzzing", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    said = [worker.stdout.readline(), worker.stdout.readline()]
    assert said[1].startswith("done"), "it works before it is killed"
    time.sleep(random.Random(attempt).random() * 0.2)
    worker.send_signal(signal.SIGKILL)
    said += worker.stdout.read().splitlines(keepends=True)
    assert worker.wait() == -signal.SIGKILL
    words = [line.split() for line in said if line.endswith("\n")]
    done = {word[1] for word in words if word[0] == "done"}
    running = {word[1] for word in words if word[0] == "running"} - done
    assert len(running) <= 1
    saved = set(kept(tmp_path / "corpus"))
    assert done <= saved, "every finished case is there, and every file is whole"
    assert len(saved - done) <= 1
    breadcrumbs = {load_case(path).id for path in in_flight(tmp_path / "run")}
    assert running <= saved | breadcrumbs
    assert done <= {record.case_id for record in read_records(tmp_path / "run")}
    assert all(load_case(path) for path in (tmp_path / "run" / "failures").glob("*.json"))
