"""Traces as text for a page: cut to what matters, with names and symbols that occur twice marked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.checks.base import Evidence, Run
from harness.traces import STATEFUL, computed_names

LINE = 180
CONTEXT = 3
"""Lines that are kept around a marked one when a trace is too long."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One trace: lines of (text, mark), where the mark is "" (none), "guilty" or "twice"."""

    caption: str
    lines: tuple[tuple[tuple[str, str], ...], ...]


def listings(run: Run, evidence: Evidence, limit: int) -> list[list[Listing]]:
    """Rows of traces side by side: those of the finding, and the last forward and backward trace."""
    rows = [list(evidence.traces)] if evidence.traces else []
    final = _final(run, evidence)
    if final and not (len(rows) == 1 and len(rows[0]) == 2):
        rows.append(final)
    return [_row(row, evidence.names, limit) for row in rows]


def _final(run: Run, evidence: Evidence) -> list[tuple[str, Any]]:
    """The last forward and backward trace of the specialisation that the finding is about, or of the first one."""
    compilations = run.subject.compilations
    chosen = next((one for one in compilations if one.step == evidence.step), next(iter(compilations), None))
    if chosen is None:
        return []
    pairs = (("last forward trace", chosen.forward), ("last backward trace", chosen.backward))
    return [(caption, traces[-1]) for caption, traces in pairs if traces]


def _row(traces: Sequence[tuple[str, Any]], guilty: Sequence[str], limit: int) -> list[Listing]:
    twice = repeated([trace for _, trace in traces]) - set(guilty)
    words = dict.fromkeys(twice, "twice") | dict.fromkeys(guilty, "guilty")
    return [
        Listing(caption, tuple(_marked(line, words) for line in _cut(trace, words, limit))) for caption, trace in traces
    ]


def repeated(traces: Sequence[Any]) -> set[str]:
    """Names that are computed, and stateful symbols that are bound, more than once over all ``traces``."""
    counts: Counter[str] = Counter()
    for trace in traces:
        for bsym in trace.bound_symbols:
            counts.update(computed_names(bsym))
            if STATEFUL.match(bsym.sym.name):
                counts[bsym.sym.name] += 1
    return {name for name, count in counts.items() if count > 1}


def _cut(trace: Any, words: dict[str, str], limit: int) -> list[str]:
    """The lines of a trace; of a long one those around marked words, and then from the top."""
    lines = [line for line in str(trace).splitlines() if not line.startswith(("import ", "from "))]
    if len(lines) > limit:
        pattern = _pattern(words)
        marked = [i for i, line in enumerate(lines) if pattern is not None and pattern.search(line)]
        order = [j for i in marked for j in range(i - CONTEXT, i + CONTEXT + 1) if 0 <= j < len(lines)]
        kept = sorted(list(dict.fromkeys([*order, *range(len(lines))]))[:limit])
        lines = _with_gaps(lines, kept)
    return [line if len(line) <= LINE else f"{line[: LINE - 1]}…" for line in lines]


def _with_gaps(lines: list[str], kept: list[int]) -> list[str]:
    result, last = [], -1
    for index in [*kept, len(lines)]:
        if index - last > 1:
            result.append(f"# ... {index - last - 1} lines left out")
        result += lines[index : index + 1]
        last = index
    return result


def _marked(line: str, words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    pattern = _pattern(words)
    if pattern is None:
        return ((line, ""),)
    return tuple((part, words.get(part, "")) for part in pattern.split(line) if part)


def _pattern(words: dict[str, str]) -> re.Pattern[str] | None:
    return re.compile(rf"\b({'|'.join(map(re.escape, words))})\b") if words else None
