"""When buckets were seen: over the time of one run, and over all runs beside it. Imports no torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec
from markupsafe import Markup

from harness.recorder import CaseRecord
from harness.report.svg import element, line, svg, text

EXPECTED_MEETINGS = 5.0
"""How often two features would have to meet by chance before it says something that they never did."""


class Glimpse(msgspec.Struct, frozen=True):
    """What is read of the records of other runs, which may be many."""

    bucket: str | None
    known_issue: str | None
    finished: float


@dataclass(slots=True)
class Sighting:
    """A bucket over all runs; times are seconds since the epoch."""

    first: float
    last: float
    last_run: str
    runs: int


def sightings(runs: Iterable[Path]) -> dict[str, Sighting]:
    """All new buckets of some runs."""
    seen: dict[str, Sighting] = {}
    for run in runs:
        times: dict[str, list[float]] = {}
        for glimpse in _glimpses(run):
            if glimpse.bucket is not None and glimpse.known_issue is None:
                times.setdefault(glimpse.bucket, []).append(glimpse.finished)
        for bucket, found in times.items():
            one = seen.setdefault(bucket, Sighting(min(found), max(found), run.name, 0))
            one.runs += 1
            one.first = min(one.first, *found)
            if max(found) >= one.last:
                one.last, one.last_run = max(found), run.name
    return seen


def _glimpses(run: Path) -> Iterator[Glimpse]:
    for path in sorted(run.glob("*.jsonl")):
        for row in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(row, type=Glimpse)
            except msgspec.DecodeError:
                continue


def day_and_time(seconds: float) -> str:
    """In the time zone of the machine."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def timeline(records: Sequence[CaseRecord]) -> Markup:
    """Cases over the time of a run; a mark where each new bucket was first seen."""
    width, height, left = 900.0, 170.0, 60.0
    ordered = sorted(records, key=lambda record: record.finished)
    begin, end = ordered[0].finished, ordered[-1].finished
    span = max(end - begin, 1e-9)

    def at(number: int) -> tuple[float, float]:
        x = left + (width - left - 20) * (ordered[number].finished - begin) / span
        return x, 12 + (height - 44) * (1 - (number + 1) / len(ordered))

    stride = max(1, len(ordered) // 200)
    shown = [*range(0, len(ordered), stride), len(ordered) - 1]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, shown))
    bottom = height - 32
    parts = [
        line(left, bottom, width - 20, bottom, "grid"),
        text(left - 6, 18, f"{len(ordered)} cases", "tick", "end"),
        text(left, height - 14, day_and_time(begin), "tick"),
        text(width - 20, height - 14, f"after {span:.0f} s", "tick", "end"),
        element("polyline", points=points, class_="ours"),
    ]
    met: set[str] = set()
    for number, record in enumerate(ordered):
        if record.bucket is not None and record.known_issue is None and record.bucket not in met:
            met.add(record.bucket)
            x, y = at(number)
            title = element("title", f"case {number + 1}, after {record.finished - begin:.0f} s: {record.bucket}")
            parts.append(element("circle", title, cx=f"{x:.1f}", cy=f"{y:.1f}", r="4.5", class_="bad"))
    return svg(width, height, "cases over time, and when each new bucket was first seen", parts)


def pairs_that_never_met(records: Sequence[CaseRecord], limit: int) -> tuple[int, list[tuple[str, str, float]]]:
    """How many pairs of features met, and those that never did though chance would have made them, most likely first.

    The number with a pair is how often chance would have: what excludes itself (two executors) is in it too.
    """
    features = Counter(feature for record in records for feature in record.features)
    met = {pair for record in records for pair in combinations(sorted(record.features), 2)}
    missing = [
        (one, other, features[one] * features[other] / len(records))
        for one, other in combinations(sorted(features), 2)
        if (one, other) not in met and one.partition(":")[0] != other.partition(":")[0]
    ]
    expected = [pair for pair in missing if pair[2] >= EXPECTED_MEETINGS]
    return len(met), sorted(expected, key=lambda pair: -pair[2])[:limit]
