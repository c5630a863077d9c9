"""The index of a run, made from its records alone."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.commands import report
from harness.recorder import CaseRecord, RunInfo
from harness.report.sightings import pairs_that_never_met
from tests.cli.support import tefuzz
from tests.report.support import parsed

BUCKET = "output/train/output/thunder-with-TE-v2/DelayedScaling"


def record(case_id: str, **fields: object) -> CaseRecord:
    plain: dict[str, object] = {
        "test": "te_v2",
        "model": "Linear(64→64)",
        "features": ("layer:Linear", "recipe:DelayedScaling"),
        "seconds": {"subject": 1.0},
        "te_linears": 1,
        "fell_back": False,
        "refusal": None,
        "bucket": None,
        "known_issue": None,
        "finished": 0.0,
    }
    return CaseRecord(case_id=case_id, **(plain | fields))  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "20261201-101500-42"
    (directory / "failures").mkdir(parents=True)
    records = [
        record("a", features=("layer:Linear", "frozen")),
        record("b", bucket=BUCKET, model="Linear(64→64) → <script>"),
        record("c", bucket=BUCKET),
        record("c", bucket=BUCKET),
        record("d", bucket="gradient/backward/input/x/none", known_issue="some-issue"),
        record("e", refusal="forward: RuntimeError: <no>"),
    ]
    (directory / "gw0.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    return directory


def test_index_without_reports(run: Path) -> None:
    result = tefuzz("report", run)
    assert result.exit_code == 0, result.output
    index = run / "reports" / "index.html"
    assert result.stdout.strip() == str(index)
    text = "".join(parsed(index).itertext())
    assert "6 cases (5 distinct)" in text
    assert "1 new, 1 known." in text
    assert "known: some-issue" in text
    assert "--report-dir" in text
    assert "RuntimeError: <no>" in text
    assert "83.3 %" in text.replace("\n", " "), "Linear is in 6 of 6, DelayedScaling in 5 of 6 records"
    assert text.index(BUCKET) < text.index("gradient/backward/input"), "what is new comes first"


def test_index_links_to_the_reports_that_are_there(run: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(BUCKET.encode()).hexdigest()[:10]
    folder = tmp_path / "out" / digest
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("")
    (run / "failures" / f"{digest}.json").write_text("{}")
    assert tefuzz("report", run, "--report-dir", tmp_path / "out").exit_code == 0
    links = [e.get("href") for e in parsed(tmp_path / "out" / "index.html").iter("a")]
    assert links == [f"{digest}/report.html"]


def write_run(directory: Path, records: list[CaseRecord]) -> Path:
    directory.mkdir()
    (directory / "main.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    return directory


def test_buckets_over_several_runs(tmp_path: Path) -> None:
    other, gone = BUCKET.replace("output", "input"), BUCKET.replace("output", "gradient")
    write_run(tmp_path / "a", [record("1", bucket=BUCKET, finished=1e9), record("2", bucket=gone, finished=1e9)])
    known = record("3", bucket="x/y/z/known/none", known_issue="some-issue", finished=1e9)
    write_run(tmp_path / "b", [known])
    records = [record(str(i), finished=1.5e9 + i) for i in range(300)]
    last = [record("4", bucket=BUCKET, finished=1.5e9 + 400), record("5", bucket=other, finished=1.5e9 + 500)]
    run = write_run(tmp_path / "c", records + last)
    assert tefuzz("report", run).exit_code == 0
    root = parsed(run / "reports" / "index.html")
    rows = {"".join(row[0].itertext()): ["".join(cell.itertext()) for cell in row] for row in root.iter("tr")}
    assert rows[BUCKET][1] == "again"
    assert rows[BUCKET][3][:4] == "2001"
    assert rows[BUCKET][4][:4] == "2017"
    assert rows[other][1] == "new"
    assert rows[gone][-1] == "a"
    assert "x/y/z/known/none" not in rows, "known issues are not said to be gone"
    marks = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(marks) == 2, "two new buckets on the time line"


def test_the_command_undoes_what_the_run_undid(run: Path) -> None:
    info = RunInfo(profile="ci", seed=1, reverts=("caching", "remat"), started=0.0)
    (run / "run.info").write_bytes(msgspec.json.encode(info))
    assert tefuzz("report", run).exit_code == 0
    commands = ["".join(e.itertext()) for e in parsed(run / "reports" / "index.html").iter("code")]
    assert any(command.endswith("/reports --revert caching --revert remat") for command in commands)


def test_pairs_of_features_that_never_met() -> None:
    together = [record(str(i), features=("layer:Linear", "step:eval")) for i in range(50)]
    apart = [record(str(i), features=("layer:Linear", "frozen", "dtype:float16")) for i in range(50)]
    met, never = pairs_that_never_met(together + apart, 5)
    assert met == 4
    assert never == [("dtype:float16", "step:eval", 25.0), ("frozen", "step:eval", 25.0)]
    assert pairs_that_never_met(together[:3] + apart[:3], 5)[1] == [], "too few to say anything"


def test_the_newest_run_is_taken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RUNS", run.parent)
    assert tefuzz("report").exit_code == 0
    assert (run / "reports" / "index.html").exists()


def test_what_is_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tefuzz("report", tmp_path)
    assert result.exit_code == 2
    assert "no records of a fuzz run" in result.stderr
    monkeypatch.chdir(tmp_path)
    result = tefuzz("report")
    assert result.exit_code == 2
    assert "run `pytest fuzz/` first" in result.stderr


def test_the_index_imports_nothing_heavy(run: Path) -> None:
    script = (
        "import sys\nfrom harness.cli import main\n"
        f"main(['report', {str(run)!r}], standalone_mode=False)\n"
        "print([name for name in ('torch', 'thunder', 'transformer_engine') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
