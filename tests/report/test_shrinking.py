"""The history of a shrink, read from the records of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.bucket import digest
from harness.report.plots import shrink_plot
from harness.report.shrinking import history
from tests.report.test_index import BUCKET, record


def write_records(run: Path) -> Path:
    """Two shards of one worker that meet the same bucket; the second one is the last. Gives its failing case."""
    plain = {"bucket": BUCKET, "item": "test[1]"}
    records = [
        record("a", item="test[1]", size=9, finished=1.0),
        record("b", **plain, size=900, layers=7, steps=3, finished=2.0, model="large"),
        record("c", item="test[1]", size=10, finished=3.0),
        record("x", bucket=BUCKET, item="test[0]", size=20, finished=3.5),
        record("d", **plain, size=950, layers=7, steps=3, finished=4.0),
        record("e", **plain, size=400, layers=3, steps=1, finished=5.0),
        record("f", item="test[1]", size=5, finished=6.0),
        record("g", **plain, size=300, layers=2, steps=1, finished=8.0, model="small"),
        record("h", item="test[1]", size=4, finished=9.0),
    ]
    (run / "failures").mkdir(parents=True)
    (run / "gw0.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    return run / "failures" / f"{digest(BUCKET)}.json"


def test_the_sizes_of_the_smallest_case(tmp_path: Path) -> None:
    found = history(write_records(tmp_path / "run"), BUCKET)
    assert found is not None
    assert [(one.execution, one.layers, one.size) for one in found.sizes] == [(1, 7, 900), (4, 3, 400), (6, 2, 300)]
    assert (found.executions, found.seconds) == (6, 6.0)
    assert found.sizes[-1].model == "small"
    picture = str(shrink_plot(found))
    assert picture.count("<circle") == 3
    assert "execution 4: 3 layers, 1 steps" in picture


def test_what_no_run_recorded_has_no_history(tmp_path: Path) -> None:
    path = write_records(tmp_path / "run")
    assert history(path, "another/bucket/x/y/z") is None
    assert history(tmp_path / "case.json", BUCKET) is None
