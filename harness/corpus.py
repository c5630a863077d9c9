"""Cases kept on disk, each in a JSON file of its own.

A file below ``corpus/regressions`` says why it is there and which revert brings its bug back:

    {"why": "two equal linears shared one FP8 state", "revert": "caching", "case": {"schema": 1, "layers": [...]}}

Everything that reads such a file also takes a bare case, as the fuzz suite writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.case import Case, CaseError, Data, decode, parse_case
from harness.fixes import REVERTS

REGRESSIONS = Path(__file__).parent.parent / "corpus" / "regressions"


class Regression(Data, frozen=True, kw_only=True):
    """A case that once failed, or must never fail."""

    why: Annotated[str, msgspec.Meta(min_length=1)]
    """Why it is kept; empty only where a bare case was read."""
    revert: str | None = None
    """The revert (``harness.fixes.REVERTS``) under which it has to fail."""
    case: Case

    def __post_init__(self) -> None:
        if self.revert is not None and self.revert not in REVERTS:
            raise ValueError(f"there is no revert {self.revert!r}: known are {', '.join(REVERTS)}")


def parse_regression(content: bytes, source: str = "<regression>") -> Regression:
    """Decode a regression or a bare case; ``CaseError`` names the source, the JSON path, the value and the remedy."""
    if _is_wrapped(content):
        return decode(content, Regression, source, precheck=_check_case)
    return Regression(why="", case=parse_case(content, source))


def load_regression(path: Path) -> Regression:
    """Read a regression or a bare case from a file. ``CaseError`` when it cannot be read or is not valid."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    return parse_regression(content, str(path))


def case_files(paths: Iterable[Path]) -> list[Path]:
    """The files named by ``paths``; a directory stands for all ``*.json`` below it, and has to hold one."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = sorted(path.rglob("*.json"))
            if not below:
                raise CaseError(f"{path}: there is no *.json in this directory or below it. Check the path.")
            files += below
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def _is_wrapped(content: bytes) -> bool:
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False  # parse_case explains what is wrong
    return isinstance(raw, dict) and not raw.keys().isdisjoint(("why", "revert", "case"))


def _check_case(raw: Any, source: str) -> None:
    """Let the case be judged by its own rules first: they know more remedies, that of a foreign schema among them."""
    if "case" in raw:
        parse_case(msgspec.json.encode(raw["case"]), f"{source}: in $.case")
