"""The folder of one bucket: ``case.json``, ``repro.py``, ``report.md`` and ``report.html``."""

from __future__ import annotations

import math
import platform
import re
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.case import canonical_json, describe, pretty_json, walk
from harness.checks.base import Finding
from harness.device import Environment
from harness.essence import seen
from harness.judge import Judgement
from harness.known_issues import KnownIssue
from harness.recorder import write_atomically
from harness.replay_command import revert_options
from harness.report import plots
from harness.report.listings import listings
from harness.report.measures import measures, state_series
from harness.report.program import doubt, program_source, sentence
from harness.report.shrinking import History
from harness.report.templates import render
from harness.report.trial import Trial, run_program

MAX_BYTES = 200_000
"""Of ``report.html``: what issue trackers and mail take."""
TRACE_LINES = (220, 120, 60, 25)
"""Lines shown of each trace; fewer when the page would get too large."""
MESSAGE_LINES = 40


@dataclass(frozen=True, slots=True)
class Written:
    """One report on disk."""

    folder: Path
    finding: Finding
    trial: Trial


@dataclass(frozen=True, slots=True)
class Subject:
    """What a report is about: the judgement of a case, and the finding that names the bucket."""

    judgement: Judgement
    finding: Finding
    issue: KnownIssue | None


def subjects(judgements: list[Judgement], bucket: str | None = None) -> list[Subject]:
    """One for each bucket: the smallest case of it.

    A case belongs to the bucket of its strongest finding, one that no known issue explains if there is any; with
    ``bucket`` (in full or as digest) to that one if it has it.
    """
    smallest: dict[str, Subject] = {}
    for judgement in judgements:
        subject = _subject(judgement, bucket)
        if subject is None:
            continue
        key = str(subject.finding.bucket)
        if key not in smallest or _size(judgement) < _size(smallest[key].judgement):
            smallest[key] = subject
    return list(smallest.values())


def _subject(judgement: Judgement, bucket: str | None) -> Subject | None:
    found = [(finding, None) for finding in judgement.unexplained] + [*judgement.explained]
    wanted = [pair for pair in found if bucket in (str(pair[0].bucket), pair[0].bucket.digest)]
    if not found:
        return None
    finding, issue = (wanted or found)[0]
    return Subject(judgement, finding, issue)


def _size(judgement: Judgement) -> int:
    return len(canonical_json(judgement.verdict.case))


def write_report(
    directory: Path,
    subject: Subject,
    environment: Environment,
    reverts: tuple[str, ...],
    where: Sequence[str] = (),
    history: History | None = None,
) -> Written:
    """Write the folder of a bucket below ``directory``; the program is run before the reports are written.

    ``where`` is what ``harness.locate`` says about the place, a line each, ``history`` how the case shrank.
    """
    finding, verdict = subject.finding, subject.judgement.verdict
    with _whole(directory / finding.bucket.digest) as folder:
        write_atomically(folder / "case.json", pretty_json(verdict.case))
        program = program_source(verdict, finding, dict(environment.versions), reverts)
        write_atomically(folder / "repro.py", program)
        trial = run_program(folder / "repro.py", finding)
        trial = replace(trial, output=without_local_paths(trial.output))
        if trial.complaint is None:
            trial = replace(trial, complaint=doubt(verdict, finding))
        context = _context(subject, environment, reverts, program, trial) | {"where": where, "history": history}
        write_atomically(folder / "report.md", render("report.md.j2", **context))
        write_atomically(folder / "report.html", page(subject, context))
    return Written(directory / finding.bucket.digest, finding, trial)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` at the end; an interrupt leaves the old one, or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)


def page(subject: Subject, context: dict[str, Any]) -> str:
    """The page, with as much of the traces as there is room for."""
    run, finding = subject.judgement.verdict.run, subject.finding
    measured, series = measures(run), state_series(run)
    context = context | {
        "picture": plots.model_picture(finding.case, frozenset(finding.evidence.layers)),
        "errors": plots.error_plot(measured) if measured else None,
        "measures": plots.shown_measures(measured),
        "measures_left_out": max(0, len(measured) - plots.MAX_ROWS),
        "states": [plots.state_plot(one) for one in series[: plots.MAX_SERIES]],
        "states_left_out": max(0, len(series) - plots.MAX_SERIES),
        "reason": _reason(subject),
        "infinity": math.inf,
        "shrinking": None if context["history"] is None else plots.shrink_plot(context["history"]),
    }
    text = ""
    for lines in TRACE_LINES:
        text = render("report.html.j2", **context, rows=listings(run, finding.evidence, lines))
        if len(text.encode()) < MAX_BYTES:
            break
    return text


def _reason(subject: Subject) -> str:
    """Why that much is allowed."""
    case = subject.finding.case
    if case.jit is not None and case.jit.executor == "torch":
        return "Allowed is what rounding can do to this case: a bound from runs with random rounding, around float64."
    return "Both sides call the same kernels on the same values, so nothing is allowed."


def _context(
    subject: Subject, environment: Environment, reverts: tuple[str, ...], program: str, trial: Trial
) -> dict[str, Any]:
    """What both templates show."""
    finding, judgement = subject.finding, subject.judgement
    case = finding.case
    verdict = judgement.verdict
    layers = dict(walk(case.layers))
    options = revert_options(reverts)
    return {
        "title": sentence(finding),
        "expected": finding.promise,
        "seen": seen(finding),
        "message": _shortened(without_local_paths(finding.message)),
        "finding": finding,
        "case": case,
        "case_json": pretty_json(case),
        "model": describe(case.layers, case.input.features),
        "guilty": [(path, type(layers[path]).__name__) for path in finding.evidence.layers if path in layers],
        "names": finding.evidence.names,
        "sides": (verdict.run.subject.subject, verdict.run.reference.subject),
        "issue": subject.issue,
        "others": [other for other in verdict.findings if other is not finding],
        "reverts": reverts,
        "program": program,
        "trial": trial,
        "command": f"tefuzz run case.json{options} --expect-bucket {finding.bucket.digest}",
        "environment": environment,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


OWN = Path(__file__).parents[2]
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def without_local_paths(text: str) -> str:
    """A traceback with files as others have them: below site-packages, the standard library or tefuzz."""
    text = re.sub(r'File "[^"]*/(?:site|dist)-packages/', 'File "', text)
    for directory, name in ((str(OWN), ""), (STANDARD_LIBRARY, "python3/")):
        text = text.replace(f'File "{directory}/', f'File "{name}')
    return re.sub(r'File "[^"]*/repro.py"', 'File "repro.py"', text)


def _shortened(message: str) -> str:
    """A message without the middle of a long traceback."""
    lines = message.rstrip().splitlines()
    if len(lines) > MESSAGE_LINES:
        lines[MESSAGE_LINES // 2 : -MESSAGE_LINES // 2] = [f"... ({len(lines) - MESSAGE_LINES} lines left out)"]
    return "\n".join(lines)
