"""What continuous integration shows of a fuzz run: JUnit with an entry for each bucket, and GitHub's summary and
annotations. All is made from what the run left on disk, so a worker that died loses nothing. Imports no torch.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bucket import digest
from harness.recorder import failure_text, in_flight, read_records, run_info, write_atomically
from harness.replay_command import revert_options, run_command

if TYPE_CHECKING:
    from harness.recorder import RunInfo

MAX_ANNOTATIONS = 10
"""GitHub shows ten errors of a step and drops the others."""
MAX_ROWS = 50
MAX_TEXT = 4000
"""Characters of one entry in GitHub's summary, which takes 1 MiB in all."""
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class BucketResult:
    """All cases of one bucket."""

    bucket: str
    known_issue: str | None
    cases: int
    seconds: float
    text: str
    """A few lines about the shrunk case; the bucket alone where the worker died before it wrote them."""
    case: Path | None
    """The shrunk case; None of a known issue."""

    @property
    def digest(self) -> str:
        """The ten digits of the bucket."""
        return digest(self.bucket)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run found."""

    cases: int
    buckets: tuple[BucketResult, ...]
    """New ones first, then by how many cases have them."""
    in_flight: tuple[Path, ...]
    """Cases whose worker died or hung."""
    info: RunInfo | None

    @property
    def new(self) -> list[BucketResult]:
        """Those that no known issue explains."""
        return [one for one in self.buckets if one.known_issue is None]


def read_result(directory: Path) -> RunResult:
    """The results of all workers of the run in ``directory``."""
    records = list(read_records(directory))
    groups: dict[tuple[str, str | None], list[Any]] = {}
    for record in records:
        if record.bucket is not None:
            groups.setdefault((record.bucket, record.known_issue), []).append(record)
    buckets = []
    for (bucket, issue), members in groups.items():
        case = directory / "failures" / f"{digest(bucket)}.json"
        buckets.append(
            BucketResult(
                bucket=bucket,
                known_issue=issue,
                cases=len({member.case_id for member in members}),
                seconds=sum(sum(member.seconds.values()) for member in members),
                text=(failure_text(directory, digest(bucket)) if issue is None else "") or bucket,
                case=case if issue is None and case.exists() else None,
            )
        )
    buckets.sort(key=lambda one: (one.known_issue is not None, -one.cases, one.bucket))
    return RunResult(len(records), tuple(buckets), tuple(in_flight(directory)), run_info(directory))


def junit(result: RunResult) -> str:
    """JUnit XML: a test case for each bucket. New ones fail, known issues are skipped, cases in flight are errors."""
    suite = ElementTree.Element("testsuite", name="tefuzz")
    for one in result.buckets:
        # A bucket may hold cases that a known issue explains and others: names have to differ.
        name = one.bucket if one.known_issue is None else f"{one.bucket} ({one.known_issue})"
        entry = _entry(suite, one.bucket.partition("/")[0], name, one.seconds)
        cases = "1 case" if one.cases == 1 else f"{one.cases} cases"
        if one.known_issue is not None:
            ElementTree.SubElement(entry, "skipped", message=f"known issue {_xml(one.known_issue)}, {cases}")
        else:
            first = one.text.splitlines()[0]
            failure = ElementTree.SubElement(entry, "failure", message=_xml(f"{first} ({cases})"))
            failure.text = _xml(one.text)
    for path in result.in_flight:
        entry = _entry(suite, "in flight", path.name, 0.0)
        error = ElementTree.SubElement(entry, "error", message="its worker died, hung or was interrupted")
        error.text = _xml(f"replay: {run_command(path, _reverts(result))}")
    if not result.new and not result.in_flight:
        _entry(suite, "run", f"nothing new in {result.cases} cases", 0.0)
    for kind, count in (
        ("tests", len(suite)),
        ("failures", len(result.new)),
        ("errors", len(result.in_flight)),
        ("skipped", len(result.buckets) - len(result.new)),
    ):
        suite.set(kind, str(count))
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _entry(suite: ElementTree.Element, kind: str, name: str, seconds: float) -> ElementTree.Element:
    attributes = {"classname": f"tefuzz.{_xml(kind)}", "name": _xml(name), "time": f"{seconds:.1f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return NO_XML.sub("�", text)


def error_commands(result: RunResult) -> Iterator[str]:
    """GitHub's workflow commands, a line each: an error for each new bucket and each case in flight."""
    errors = [(f"tefuzz: {one.bucket.partition('/')[0]} [{one.digest}]", one.text) for one in result.new]
    errors += [("tefuzz: a worker died or hung", run_command(path)) for path in result.in_flight]
    shown = errors if len(errors) <= MAX_ANNOTATIONS else errors[: MAX_ANNOTATIONS - 1]
    for title, text in shown:
        yield f"::error title={_property(title)}::{_data(text)}"
    if len(shown) < len(errors):
        yield f"::error title=tefuzz::{len(errors) - len(shown)} more are in the summary of this step"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(result: RunResult) -> str:
    """Markdown for GitHub's page of a run."""
    from harness.report.templates import code, fenced

    lines = ["## tefuzz", "", _headline(result), ""]
    if result.info is not None:
        info = result.info
        lines += [f"Profile {info.profile}, seed {info.seed}; {code(info.environment or '-')}.", ""]
        if info.reverts:
            lines += [f"**Fixes were undone on purpose: {', '.join(info.reverts)}.**", ""]
    if result.buckets:
        lines += ["| bucket | | cases |", "|---|---|---|"]
        for one in result.buckets[:MAX_ROWS]:
            state = "**new**" if one.known_issue is None else f"known: {code(one.known_issue)}"
            lines.append(f"| {_cell(code(one.bucket))} | {_cell(state)} | {one.cases} |")
        lines += [*_left_out(len(result.buckets)), ""]
    for one in result.new[:MAX_ROWS]:
        lines += [fenced(one.text[:MAX_TEXT], "text"), ""]
    lines += [f"- In flight when its worker died or hung: {code(str(path))}" for path in result.in_flight[:MAX_ROWS]]
    return "\n".join(lines) + "\n"


def _cell(markdown: str) -> str:
    """In a table a bar ends the cell, also inside code."""
    return markdown.replace("|", "\\|")


def _headline(result: RunResult) -> str:
    known = len(result.buckets) - len(result.new)
    return f"{result.cases} cases: {len(result.new)} new buckets, {known} with known issues only."


def _left_out(count: int) -> list[str]:
    return [f"| {count - MAX_ROWS} more | | |"] if count > MAX_ROWS else []


def _reverts(result: RunResult) -> str:
    return revert_options(result.info.reverts) if result.info is not None else ""


def publish(directory: Path, junit_path: Path | None, environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """Write what was asked for, and give the lines that GitHub wants on standard output."""
    on_github = environment.get("GITHUB_ACTIONS") == "true"
    if junit_path is None and not on_github:
        return []
    result = read_result(directory)
    if junit_path is not None:
        junit_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(junit_path, junit(result))
    if not on_github:
        return []
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a") as file:  # other steps' commands may have written to it
            file.write(step_summary(result))
    return list(error_commands(result))
