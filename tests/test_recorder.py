"""What a run leaves on disk, also when it dies, and the summary made from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.case import Case, Jit, Linear, Precision, load_case, replace
from harness.checks.base import Bucket
from harness.recorder import Recorder, in_flight, read_records, write_atomically
from harness.summary import summary_lines

CASE = Case(layers=(Linear(out_features=64),))
OTHER = replace(CASE, seed=1)
BUCKET = Bucket("gradient", "backward", "Linear.weight", "thunder with TE v2", "DelayedScaling")


@dataclass
class FindingStandIn:
    bucket: Bucket


@dataclass
class VerdictStandIn:
    """A verdict without what only torch can make."""

    case: Case
    findings: tuple[FindingStandIn, ...] = ()
    refusal: str | None = None
    te_linears: int = 1
    memory: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"subject": 3.0, "reference": 1.0})


def record(recorder: Recorder, case: Case, known_issue: str | None = None, **verdict: Any) -> None:
    recorder.before(case)
    recorder.after("te_v2", VerdictStandIn(case, **verdict), known_issue)  # type: ignore[arg-type]


def test_records_are_on_disk_as_soon_as_the_case_is_done(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "gw0")
    record(recorder, CASE)
    (read,) = read_records(tmp_path)
    assert (read.case_id, read.test, read.model) == (CASE.id, "te_v2", "Linear(64→64)")
    assert "layer:Linear" in read.features
    assert read.seconds == {"subject": 3.0, "reference": 1.0}
    assert (read.te_linears, read.fell_back, read.bucket, read.refusal) == (1, False, None, None)
    record(recorder, OTHER)
    recorder.close()
    assert [r.case_id for r in read_records(tmp_path)] == [CASE.id, OTHER.id]


@pytest.mark.parametrize(
    ("case", "te_linears", "fell_back"),
    [
        (CASE, 0, True),
        (CASE, 2, False),
        (replace(CASE, precision=Precision(recipe=None)), 0, False),
        (replace(CASE, jit=Jit(executor="torch")), 0, False),
    ],
)
def test_a_fall_back_is_fp8_asked_for_and_not_had(tmp_path: Path, case: Case, te_linears: int, fell_back: bool) -> None:
    recorder = Recorder(tmp_path, "main")
    record(recorder, case, te_linears=te_linears)
    recorder.close()
    assert [r.fell_back for r in read_records(tmp_path)] == [fell_back]


def test_a_case_in_flight_survives_its_worker(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "gw1")
    recorder.before(CASE)
    (path,) = in_flight(tmp_path)
    assert load_case(path) == CASE
    assert any(
        f"IN FLIGHT when the run was interrupted or its worker died: {path}" in line
        for line in summary_lines(tmp_path, 1.0)
    )
    record(recorder, OTHER)
    recorder.close()
    assert in_flight(tmp_path) == []
    assert not any("IN FLIGHT" in line for line in summary_lines(tmp_path, 1.0))


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_cut_off_is_passed_over(tmp_path: Path, cut: int) -> None:
    recorder = Recorder(tmp_path, "gw0")
    record(recorder, CASE)
    record(recorder, OTHER)
    recorder.close()
    path = tmp_path / "gw0.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert [r.case_id for r in read_records(tmp_path)] == [CASE.id]
    arrow = path.read_bytes().rindex("→".encode())
    path.write_bytes(path.read_bytes()[: arrow + 1])
    assert [r.case_id for r in read_records(tmp_path)] == [CASE.id], "cut in the middle of a character"


def test_failing_cases_are_kept_by_bucket(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "gw0")
    other_bucket = Bucket("output", "train", "output", "thunder with TE v2", "DelayedScaling")

    def keep(case: Case, bucket: Bucket) -> Path:
        return recorder.failure_path(VerdictStandIn(case, (FindingStandIn(bucket),)))  # type: ignore[arg-type]

    first = keep(CASE, BUCKET)
    assert keep(OTHER, BUCKET) == first
    assert keep(CASE, other_bucket) != first
    recorder.close()
    assert load_case(first) == OTHER, "the last one is the one that shrinking ended at"
    assert first.parent == tmp_path / "failures"
    assert len(list(first.parent.iterdir())) == 2, "nothing temporary is left"


def test_two_workers_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = Recorder(tmp_path, "gw0"), Recorder(tmp_path, "gw1")
    one.before(CASE)
    two.before(OTHER)
    assert {load_case(path).id for path in in_flight(tmp_path)} == {CASE.id, OTHER.id}
    for recorder, case in ((one, CASE), (two, OTHER)):
        recorder.after("te_v2", VerdictStandIn(case), None)  # type: ignore[arg-type]
        recorder.close()
    assert {r.case_id for r in read_records(tmp_path)} == {CASE.id, OTHER.id}


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def cut_short(self: Path, text: str) -> None:
        with open(self, "w") as file:
            file.write(text[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert str(os.getpid()) in next(p.name for p in tmp_path.iterdir() if p != path), "workers use other names"


def test_the_summary_counts(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "main")
    record(recorder, CASE)
    record(recorder, CASE, te_linears=0)
    record(recorder, OTHER, te_linears=2, seconds={"subject": 9.0, "checks": 1.0})
    record(recorder, OTHER, refusal="backward: RuntimeError: no")
    record(recorder, CASE, findings=(FindingStandIn(BUCKET),))
    record(recorder, CASE, findings=(FindingStandIn(BUCKET),), known_issue="one")
    recorder.close()
    lines = list(summary_lines(tmp_path, 12.0))
    assert lines[0] == "6 cases (2 distinct) in 12 s, 0.50 cases/s"
    assert "layers: Linear 6" in lines
    assert "recipes: DelayedScaling 6" in lines
    assert "executors: transformer_engine 6; fuser: none" in lines
    assert "Thunder's TE executors ran 6 linears in 5 cases; 1 cases asked for FP8 and got none" in lines
    assert "refused: 1 x backward: RuntimeError: no" in lines
    assert "time: subject 80%, reference 17%, checks 3%" in lines
    assert f"slowest case: {OTHER.id}, 10.0 s: Linear(64→64)" in lines
    assert "known issue: 1 x one" in lines
    assert "FOUND: 1 x gradient/backward/Linear.weight/thunder-with-TE-v2/DelayedScaling" in lines
    assert list(summary_lines(tmp_path / "absent", 0.0)) == [
        "0 cases (0 distinct) in 0 s, 0.00 cases/s",
        "NO CASE WAS RUN: nothing was tested",
    ]


@pytest.mark.parametrize(
    ("memory", "reported"),
    [
        ([200 + 5 * index for index in range(100)], True),
        ([400 + index for index in range(100)], False),
        ([40 + index for index in range(100)], False),
        ([400, 900] * 50, False),
        ([400 + 50 * index for index in range(30)], False),
        ([0] * 100, False),
    ],
    ids=["grows", "grows little", "small", "ups and downs", "few cases", "not looked at"],
)
def test_a_leak_is_reported(tmp_path: Path, memory: list[int], reported: bool) -> None:
    recorder = Recorder(tmp_path, "gw3")
    for megabytes in memory:
        recorder.before(CASE)
        verdict = VerdictStandIn(CASE)
        verdict.memory = megabytes * 2**20
        recorder.after("te_v2", verdict, None)  # type: ignore[arg-type]
    recorder.close()
    lines = [line for line in summary_lines(tmp_path, 1.0) if line.startswith("LEAK")]
    assert len(lines) == reported
    if reported:
        assert "over 100 cases of gw3" in lines[0]
