"""How a case shrank while the fuzz suite found it, from the records of the run. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.recorder import CaseRecord, read_records


@dataclass(frozen=True, slots=True)
class Size:
    """The smallest case of a bucket so far."""

    execution: int
    """Cases that its test had run since the first one of the bucket, which is 1."""
    layers: int
    steps: int
    size: int
    """Bytes of its JSON."""
    model: str


@dataclass(frozen=True, slots=True)
class History:
    """From the first case of a bucket to the smallest one."""

    sizes: tuple[Size, ...]
    executions: int
    """Cases that were run from the first one of the bucket to the last."""
    seconds: float


def history(case: Path, bucket: str) -> History | None:
    """How the case in ``.tefuzz/runs/RUN/failures/BUCKET.json`` came about; None where no records say so."""
    if case.parent.name != "failures":
        return None
    found = [records for records in _by_test(case.parent.parent) if any(one.bucket == bucket for one in records)]
    # Several tests may have met the bucket; the file holds what the last one of them ended with.
    last = max(found, key=lambda records: max(one.finished for one in records if one.bucket == bucket), default=None)
    return None if last is None else _history(last, bucket)


def _by_test(run: Path) -> Iterator[list[CaseRecord]]:
    """The records of each test of each worker, in order."""
    for path in sorted(run.glob("*.jsonl")):
        groups: dict[str, list[CaseRecord]] = {}
        for record in read_records(run, path.name):
            groups.setdefault(record.item or record.test, []).append(record)
        yield from groups.values()


def _history(records: list[CaseRecord], bucket: str) -> History:
    numbers = [number for number, record in enumerate(records) if record.bucket == bucket]
    first, last = numbers[0], numbers[-1]
    sizes: list[Size] = []
    for number in numbers:
        record = records[number]
        if not sizes or record.size < sizes[-1].size:
            sizes.append(Size(number - first + 1, record.layers, record.steps, record.size, record.model))
    return History(tuple(sizes), last - first + 1, records[last].finished - records[first].finished)
