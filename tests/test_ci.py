"""What CI shows of a run is made from its records, escaped and capped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from harness import ci
from harness.bucket import digest
from harness.recorder import CaseRecord, RunInfo, write_atomically
from harness.terminal import shorten
from tests.report.test_index import record

HOSTILE = "gradient/backward/<b>\x00|`%,:\n::error::x/thunder/none"
KNOWN = "output/train/output/thunder/none"


class Found(AssertionError):
    essence: str | None = None


def write_run(directory: Path, records: dict[str, list[CaseRecord]]) -> Path:
    """The directory of a run; the records are those of each worker."""
    (directory / "failures").mkdir(parents=True)
    for worker, members in records.items():
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in members)
        (directory / f"{worker}.jsonl").write_bytes(lines)
    info = RunInfo(profile="ci", seed=3, reverts=("caching",), started=0.0, environment="torch 2.13.0")
    write_atomically(directory / "run.info", msgspec.json.encode(info).decode())
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    known = record("c", bucket=KNOWN, known_issue="some-issue")
    directory = write_run(
        tmp_path / "run",
        {"gw0": [record("a"), record("b", bucket=HOSTILE)], "gw1": [record("b", bucket=HOSTILE), known]},
    )
    name = digest(HOSTILE)
    write_atomically(directory / "failures" / f"{name}.txt", "GradientDiffers: 100% <wrong>\x01\n  where: ]]> here\n")
    write_atomically(directory / "failures" / f"{name}.json", "{}")
    write_atomically(directory / "gw2.in-flight.json", "{}")
    with (directory / "gw1.jsonl").open("a") as file:
        file.write('{"case_id": "cut off by a cra')
    return directory


def test_junit_has_an_entry_for_each_bucket(run: Path, tmp_path: Path) -> None:
    assert ci.publish(run, tmp_path / "new" / "junit.xml", {}) == [], "GitHub's lines are for GitHub"
    suite = ElementTree.parse(tmp_path / "new" / "junit.xml").getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    new, known, lost = suite
    assert new.get("classname") == "tefuzz.gradient"
    assert (new[0].tag, new[0].get("message")) == ("failure", "GradientDiffers: 100% <wrong>� (1 case)")
    assert "]]> here" in str(new[0].text)
    assert (known.get("name"), known[0].tag) == (f"{KNOWN} (some-issue)", "skipped")
    assert "some-issue" in str(known[0].get("message"))
    assert (lost.get("name"), lost[0].tag) == ("gw2.in-flight.json", "error")
    assert str(lost[0].text).endswith("gw2.in-flight.json --revert caching")


def test_junit_of_a_clean_run_has_a_test(tmp_path: Path) -> None:
    suite = ElementTree.fromstring(ci.junit(ci.read_result(write_run(tmp_path / "run", {"main": [record("a")]}))))
    (entry,) = suite
    assert (entry.get("name"), len(entry)) == ("nothing new in 1 cases", 0)


def test_github_gets_a_summary_and_errors(run: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    lines = ci.publish(run, None, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    title = f"tefuzz%3A gradient [{digest(HOSTILE)}]"
    assert lines[0] == f"::error title={title}::GradientDiffers: 100%25 <wrong>\x01%0A  where: ]]> here"
    assert len(lines) == 2
    assert not any("\n" in line for line in lines)
    text = summary.read_text()
    assert text.startswith("# before\n## tefuzz\n\n4 cases: 1 new buckets, 1 with known issues only.\n")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    assert len(rows) == 3, "a bucket is one row, whatever is in it"
    assert "\\|" in rows[1]
    assert "| **new** | 1 |" in rows[1]
    assert "undone on purpose: caching" in text
    assert "gw2.in-flight.json" in text


def test_many_buckets_are_capped(tmp_path: Path) -> None:
    records = [record(str(number), bucket=f"output/{number}/x/y/z") for number in range(200)]
    result = ci.read_result(write_run(tmp_path / "run", {"main": records}))
    lines = list(ci.error_commands(result))
    assert len(lines) == ci.MAX_ANNOTATIONS
    assert lines[-1] == "::error title=tefuzz::191 more are in the summary of this step"
    assert len(ci.step_summary(result)) < 2**20
    assert "| 150 more | | |" in ci.step_summary(result)


def test_findings_alone_are_shortened() -> None:
    class Report:
        longrepr: object = "a long traceback"

    first, second, other = Found(), Found(), ValueError("our own bug")
    first.essence, second.essence = "first", "second"
    report = Report()
    for error in (other, ExceptionGroup("both", [first, other]), Found()):
        shorten(report, error)
        assert report.longrepr == "a long traceback"
    shorten(report, ExceptionGroup("two", [first, second]))
    assert report.longrepr == "first\n\nsecond\n\n(pytest -v shows the whole tracebacks)"
