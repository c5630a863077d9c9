"""Cases kept on disk, each in a JSON file of its own.

A file says why it is there; one below ``corpus/regressions`` also which revert brings its bug back, and one of a
working corpus (``harness.working_corpus``) the bucket in which it was found:

    {"why": "two equal linears shared one FP8 state", "revert": "caching", "case": {"schema": 1, "layers": [...]}}

Everything that reads such a file also takes a bare case, as the fuzz suite writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.case import Case, CaseError, Data, canonical_json, decode, parse_case, pretty_json, upgraded_case
from harness.fixes import REVERTS

CORPUS = Path(__file__).parent.parent / "corpus"
REGRESSIONS = CORPUS / "regressions"
"""Cases that once failed, and what must never fail."""
HABITS = CORPUS / "habits"
"""Cases that stand for what training scripts do."""


class Regression(Data, frozen=True, kw_only=True):
    """A case that once failed, or must never fail."""

    why: Annotated[str, msgspec.Meta(min_length=1)]
    """Why it is kept; empty only where a bare case was read."""
    revert: str | None = None
    """The revert (``harness.fixes.REVERTS``) under which it has to fail."""
    bucket: str | None = None
    """The bucket of the finding that it showed when it was kept."""
    case: Case

    def __post_init__(self) -> None:
        if self.revert is not None and self.revert not in REVERTS:
            raise ValueError(f"there is no revert {self.revert!r}: known are {', '.join(REVERTS)}")


def parse_regression(content: bytes, source: str = "<regression>") -> Regression:
    """Decode a regression or a bare case; ``CaseError`` names the source, the JSON path, the value and the remedy."""
    if _is_wrapped(content):
        return decode(content, Regression, source, prepare=_upgraded)
    return Regression(why="", case=parse_case(content, source))


def load_regression(path: Path) -> Regression:
    """Read a regression or a bare case from a file. ``CaseError`` when it cannot be read or is not valid."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    return parse_regression(content, str(path))


def regression_json(entry: Regression) -> str:
    """The content of a file, for people and for diffs: the reason comes first. Without a reason it is a bare case."""
    if not entry.why:
        return pretty_json(entry.case)
    document: dict[str, Any] = {"why": entry.why}
    document |= {name: value for name in ("revert", "bucket") if (value := getattr(entry, name)) is not None}
    document["case"] = msgspec.Raw(canonical_json(entry.case))
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


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
    return isinstance(raw, dict) and not raw.keys().isdisjoint(("why", "revert", "bucket", "case"))


def _upgraded(raw: Any, source: str) -> Any:
    """Let the case be judged by its own rules first: they know more remedies, that of a foreign schema among them."""
    if "case" not in raw:
        return raw
    where = f"{source}: in $.case"
    parse_case(msgspec.json.encode(raw["case"]), where)
    return raw | {"case": upgraded_case(raw["case"], where)}
