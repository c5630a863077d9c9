"""The terminal summary of a fuzz run, made from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from harness.bucket import digest
from harness.recorder import CaseRecord, failure_file, in_flight, read_records
from harness.replay_command import run_command


def summary_lines(directory: Path, seconds: float, replay_options: str = "") -> Iterator[str]:
    """What a run tried and found, a line each. ``replay_options`` are those that a kept case needs to fail again."""
    records = list(read_records(directory))
    rate = len(records) / seconds if seconds else 0.0
    yield f"{len(records)} cases ({len({r.case_id for r in records})} distinct) in {seconds:.0f} s, {rate:.2f} cases/s"
    for path in in_flight(directory):
        yield f"IN FLIGHT when the run was interrupted or its worker died: {path}"
    if not records:
        yield "NO CASE WAS RUN: nothing was tested"
        return
    yield f"layers: {_counted(records, 'layer:')}"
    yield f"recipes: {_counted(records, 'recipe:')}"
    yield f"executors: {_counted(records, 'executor:')}; fuser: {_counted(records, 'hide_parameters:')}"
    te_cases = [record for record in records if record.te_linears]
    yield (
        f"Thunder's TE executors ran {sum(record.te_linears for record in te_cases)} linears in {len(te_cases)} cases; "
        f"{sum(record.fell_back for record in records)} cases asked for FP8 and got none"
    )
    refused = Counter(record.refusal for record in records if record.refusal)
    for refusal, count in refused.most_common(5):
        yield f"refused: {count} x {refusal}"
    spent = Counter[str]()
    for record in records:
        spent.update(record.seconds)
    total = sum(spent.values()) or 1.0
    yield "time: " + ", ".join(f"{phase} {value / total:.0%}" for phase, value in spent.most_common())
    slowest = max(records, key=lambda record: sum(record.seconds.values()))
    yield f"slowest case: {slowest.case_id}, {sum(slowest.seconds.values()):.1f} s: {slowest.model}"
    yield from leaks(directory)
    for issue, count in Counter(r.known_issue for r in records if r.known_issue).most_common():
        yield f"known issue: {count} x {issue}"
    for bucket, count in Counter(r.bucket for r in records if r.bucket and not r.known_issue).most_common():
        yield f"FOUND: {count} x {bucket}"
        if (path := failure_file(directory, digest(bucket))).exists():
            yield f"    replay: {run_command(path, replay_options)}"


LEAK_CASES = 40
"""Fewer cases say nothing: the first ones of a process fill caches."""
LEAK_BYTES = 128 * 2**20
LEAK_RATIO = 1.5


def leaks(directory: Path) -> Iterator[str]:
    """Workers whose memory after a case keeps growing: the last quarter of their cases against the second."""
    for path in sorted(directory.glob("*.jsonl")):
        used = [record.memory for record in read_records(directory, path.name) if record.memory]
        quarter = len(used) // 4
        if len(used) < LEAK_CASES:
            continue
        early, late = median(used[quarter : 2 * quarter]), median(used[-quarter:])
        if late - early > LEAK_BYTES and late > LEAK_RATIO * early:
            grown = f"{early / 2**20:.0f} MB to {late / 2**20:.0f} MB"
            yield f"LEAK: the memory in use after a case grew from {grown} over {len(used)} cases of {path.stem}"


def _counted(records: list[CaseRecord], prefix: str) -> str:
    counts = Counter(
        feature.removeprefix(prefix) for record in records for feature in record.features if feature.startswith(prefix)
    )
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
