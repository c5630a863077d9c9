"""The index of a fuzz run: its buckets, how often each was found, and what the run covered. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.bucket import digest
from harness.case import CaseError
from harness.recorder import CaseRecord, in_flight, read_records, run_info, write_atomically
from harness.replay_command import revert_options
from harness.report.sightings import Sighting, day_and_time, pairs_that_never_met, sightings, timeline
from harness.report.templates import render

GROUPS = (
    "layer",
    "activation",
    "recipe",
    "recipe_object",
    "dtype",
    "distribution",
    "executor",
    "cache",
    "entry",
    "step",
)
"""Kinds of features that come first, in this order; the others follow."""

NEVER_MET = 15
"""Pairs of features that are shown."""


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket of a run."""

    bucket: str
    digest: str
    known_issue: str | None
    cases: int
    model: str
    """The shortest model that showed it."""
    report: str | None
    """The page of its report, relative to the index; None where there is none yet."""
    case: str | None
    """The file that holds the shrunk case; None for a known issue."""
    first: str
    """When this run, or one beside it, first saw it."""
    last: str
    state: str
    """``new``: no run before saw it; ``again``, or the known issue."""


def write_index(run: Path, directory: Path) -> Path:
    """Write ``index.html`` into ``directory`` for the records of ``run``; ``CaseError`` if there are none."""
    records = list(read_records(run))
    if not records:
        raise CaseError(f"{run}: there are no records of a fuzz run in it. Give a directory below .tefuzz/runs.")
    directory.mkdir(parents=True, exist_ok=True)
    seen = sightings(path for path in run.absolute().parent.iterdir() if path.is_dir())
    rows = bucket_rows(records, run, directory, seen)
    here = {row.bucket for row in rows}
    met, never = pairs_that_never_met(records, NEVER_MET)
    info = run_info(run)
    reverts = revert_options(info.reverts) if info is not None else ""
    text = render(
        "index.html.j2",
        run=run.name,
        records=len(records),
        distinct=len({record.case_id for record in records}),
        seconds=sum(sum(record.seconds.values()) for record in records),
        te_linears=sum(record.te_linears for record in records),
        fell_back=sum(record.fell_back for record in records),
        rows=rows,
        new=sum(row.known_issue is None for row in rows),
        command=f"tefuzz run {run / 'failures'}/*.json --report-dir {directory}{reverts}",
        groups=feature_groups(records),
        refusals=Counter(record.refusal for record in records if record.refusal).most_common(10),
        in_flight=[str(path) for path in in_flight(run)],
        timeline=timeline(records),
        gone=[
            (bucket, _kept(run.parent / one.last_run, bucket), day_and_time(one.first), day_and_time(one.last))
            for bucket, one in sorted(seen.items(), key=lambda item: -item[1].last)
            if bucket not in here
        ],
        pairs=met,
        never=never,
    )
    path = directory / "index.html"
    write_atomically(path, text)
    return path


def _kept(run: Path, bucket: str) -> str:
    """The file that a run kept of a bucket, or the name of the run."""
    case = run / "failures" / f"{digest(bucket)}.json"
    return str(case) if case.exists() else run.name


def bucket_rows(records: list[CaseRecord], run: Path, directory: Path, seen: Mapping[str, Sighting]) -> list[BucketRow]:
    """The buckets, new ones first, then by how many cases have them."""
    grouped: dict[tuple[str, str | None], list[CaseRecord]] = {}
    for record in records:
        if record.bucket is not None:
            grouped.setdefault((record.bucket, record.known_issue), []).append(record)
    rows = []
    for (bucket, issue), members in grouped.items():
        short = digest(bucket)
        times = [member.finished for member in members]
        before = seen.get(bucket) if issue is None else None
        page, case = directory / short / "report.html", run / "failures" / f"{short}.json"
        rows.append(
            BucketRow(
                bucket=bucket,
                digest=short,
                known_issue=issue,
                cases=len({member.case_id for member in members}),
                model=min((member.model for member in members), key=len),
                report=f"{short}/report.html" if page.exists() else None,
                case=str(case) if case.exists() else None,
                first=day_and_time(min(times) if before is None else before.first),
                last=day_and_time(max(times)),
                state=f"known: {issue}"
                if issue
                else "new"
                if before is None or before.first == min(times)
                else "again",
            )
        )
    return sorted(rows, key=lambda row: (row.known_issue is not None, -row.cases, row.bucket))


def feature_groups(records: list[CaseRecord]) -> list[tuple[str, list[tuple[str, int, float]]]]:
    """Features by kind, each with the number of cases that have it and their share."""
    counts = Counter(feature for record in records for feature in record.features)
    groups: dict[str, list[tuple[str, int, float]]] = {}
    for feature, count in counts.most_common():
        kind, colon, name = feature.partition(":")
        groups.setdefault(kind if colon else "other", []).append((name or kind, count, count / len(records)))
    order = {kind: position for position, kind in enumerate(GROUPS)}
    return sorted(groups.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
