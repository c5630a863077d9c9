"""What became of each mutant: the lines of a campaign's file, and the table made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.case import Case, Data, canonical_json, describe
from harness.mutants.base import Mutant


class Result(Data, frozen=True, kw_only=True):
    """One mutant after its search."""

    mutant: str
    digest: str
    """``Mutant.digest``: a result of another mutant of the name does not count."""
    outcome: Literal["killed", "survived", "error"]
    """``error``: nothing is known, for the mutant could not be applied or the finding is not its own."""
    max_examples: int
    """How many were allowed."""
    by: str = ""
    """The check that found it, ``crash`` or ``hang``; for an error what went wrong."""
    bucket: str = ""
    examples: int = 0
    """Cases run until the first finding; for a survivor all of them."""
    seconds: float = 0.0
    """Until the first finding; for a survivor until the end."""
    executions: int = 0
    """Cases run in all, to find and to shrink."""
    case: Case | None = None
    """The shrunk case; for a crash or a hang the one that was running."""


def read_results(path: Path) -> dict[str, Result]:
    """The last result of each mutant; a line cut off by a crash is passed over. Empty when there is no file."""
    results: dict[str, Result] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                result = msgspec.json.decode(line, type=Result)
            except msgspec.DecodeError:
                continue
            results[result.mutant] = result
    return results


def append_result(path: Path, result: Result) -> None:
    """Add a line to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def is_finished(mutant: Mutant, result: Result | None, max_examples: int) -> bool:
    """Whether a result answers for ``mutant``: it is of this very mutant, and no longer search was asked for."""
    if result is None or result.digest != mutant.digest or result.outcome == "error":
        return False
    return result.outcome == "killed" or result.max_examples >= max_examples


def fails(mutant: Mutant, result: Result) -> bool:
    """Whether a campaign with this result has something left to explain."""
    return result.outcome == "error" or (result.outcome == "survived" and not mutant.equivalent)


def table(mutants: Iterable[Mutant], results: Mapping[str, Result]) -> Iterator[str]:
    """A line per mutant that has a result: killed ones first, survivors last and in capitals, then the count."""
    rows = [(mutant, results[mutant.name]) for mutant in mutants if mutant.name in results]
    rows.sort(key=lambda row: (fails(*row), row[1].outcome != "killed"))
    cells = [
        ("mutant", "killed by", "examples", "seconds", "executions", "shrunk to"),
        *(_row(mutant, result) for mutant, result in rows),
    ]
    yield from _aligned(cells)
    killed = sum(result.outcome == "killed" for _, result in rows)
    equivalent = sum(result.outcome == "survived" and bool(mutant.equivalent) for mutant, result in rows)
    left = sum(fails(*row) for row in rows)
    yield f"{len(rows)} mutants: {killed} killed, {equivalent} equivalent, {left} left to explain"


def summary(case: Case) -> str:
    """The model on one line, and what else of the case is not at its default, but for the seed."""
    rest: dict[str, Any] = msgspec.json.decode(canonical_json(case))
    for field in ("schema", "layers", "seed"):
        rest.pop(field, None)
    others = f" {msgspec.json.encode(rest).decode()}" if rest else ""
    return describe(case.layers, case.input.features) + others


def _row(mutant: Mutant, result: Result) -> tuple[str, ...]:
    numbers = (str(result.examples), f"{result.seconds:.0f}", str(result.executions))
    case = summary(result.case) if result.case is not None else ""
    match result.outcome:
        case "killed":
            return (mutant.name, result.by, *numbers, case)
        case "survived" if mutant.equivalent:
            return (mutant.name, "equivalent", *numbers, mutant.equivalent)
        case "survived":
            return (mutant.name.upper(), "SURVIVED", *numbers, f"expected: {mutant.symptom}")
        case _:
            return (mutant.name.upper(), "ERROR", *numbers, result.by)


def _aligned(cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[2:5], widths[2:5], strict=True)]
        yield "  ".join([*left, *right, row[5]]).rstrip()
