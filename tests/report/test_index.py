"""The index of a run, made from its records alone."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.commands import report
from harness.recorder import CaseRecord
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
