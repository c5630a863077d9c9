"""The working corpus: what fuzz runs found and reached, kept outside git and growing from run to run.

It is a directory with one file per case, named after the case's id, so that equal cases are one and several processes
and machines can write into it. A file appears whole or not at all. A case is kept when it shows a finding in a bucket
that is new, or smaller than the case kept for it, or when two of its features never met in a kept case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

from harness.case import Case, CaseError, canonical_json
from harness.corpus import Regression, load_regression, regression_json
from harness.features import features
from harness.recorder import write_atomically

DEFAULT_DIRECTORY = Path(".tefuzz") / "corpus"
DIRECTORY_VARIABLE = "TEFUZZ_CORPUS"
"""The environment variable that names another directory."""
ABANDONED_SECONDS = 3600.0
"""How old the temporary file of a write is before nobody can be writing it any more."""

Pair = tuple[str, str]


def default_directory(root: Path = Path()) -> Path:
    """Where the working corpus of a checkout is, unless the environment says otherwise."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or root / DEFAULT_DIRECTORY)


def pairs(case: Case) -> set[Pair]:
    """Every two features that meet in ``case``, each pair in alphabetical order."""
    return set(combinations(sorted(features(case)), 2))


def size(case: Case) -> tuple[int, str]:
    """What makes a case smaller than another: the length of its canonical JSON, then its id."""
    return len(canonical_json(case)), case.id


class WorkingCorpus:
    """The corpus of one directory, to which one process adds. Made when the first case is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pairs: set[Pair] = set()
        self._smallest: dict[str, Case] = {}
        self._written: dict[str, Path] = {}
        for _, entry in read_corpus(directory)[0]:
            self._note(entry)

    def add(self, case: Case, test: str, bucket: str | None = None) -> Path | None:
        """Keep ``case`` of a fuzz test if it is worth it, and return its file. ``bucket`` is the one of its finding."""
        why = self._reason(case, bucket)
        if why is None:
            return None
        entry = Regression(why=f"{test} {why}", bucket=bucket, case=case)
        path = write_entry(self.directory, entry)
        self._note(entry)
        if bucket is not None:
            # While it shrinks, each smaller case takes the place of the one before. Others' files are left alone.
            if (before := self._written.get(bucket)) is not None and before != path:
                before.unlink(missing_ok=True)
            self._written[bucket] = path
        return path

    def _reason(self, case: Case, bucket: str | None) -> str | None:
        if bucket is not None:
            known = self._smallest.get(bucket)
            return f"found {bucket}" if known is None or size(case) < size(known) else None
        new = pairs(case) - self._pairs
        if not new:
            return None
        more = f" and {len(new) - 1} more pairs of features" if len(new) > 1 else ""
        return f"met {' + '.join(min(new))}{more}"

    def _note(self, entry: Regression) -> None:
        if entry.bucket is None:
            # Of a case that fails it is not known what else it would test, so its pairs do not count.
            self._pairs |= pairs(entry.case)
            return
        known = self._smallest.get(entry.bucket)
        if known is None or size(entry.case) < size(known):
            self._smallest[entry.bucket] = entry.case


def write_entry(directory: Path, entry: Regression) -> Path:
    """Write the file of ``entry``, whole or not at all, and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{entry.case.id}.json"
    write_atomically(path, regression_json(entry))
    return path


def read_corpus(directory: Path) -> tuple[list[tuple[Path, Regression]], list[CaseError]]:
    """All readable files below ``directory`` with their content, and why the others are not. None if it is not there.

    A file that another process removes meanwhile is passed over.
    """
    entries: list[tuple[Path, Regression]] = []
    problems: list[CaseError] = []
    for path in sorted(directory.rglob("*.json")):
        try:
            entries.append((path, load_regression(path)))
        except CaseError as error:
            if path.exists():
                problems.append(error)
    return entries, problems


def minimised(entries: Iterable[Regression]) -> list[Regression]:
    """Which entries to keep: the smallest case of each bucket, and of those that found nothing the smallest that show
    all pairs of features.

    From the smallest on, a case stays if two of its features meet in no case kept before it. So of several cases with
    the same features only the smallest stays, and no pair of features is lost.
    """
    kept: list[Regression] = []
    buckets: set[str] = set()
    seen: set[Pair] = set()
    for entry in sorted(_joined(entries).values(), key=lambda entry: size(entry.case)):
        if entry.bucket is None and not pairs(entry.case) <= seen:
            seen |= pairs(entry.case)
            kept.append(entry)
        elif entry.bucket is not None and entry.bucket not in buckets:
            buckets.add(entry.bucket)
            kept.append(entry)
    return kept


def _joined(entries: Iterable[Regression]) -> dict[str, Regression]:
    """One entry per id: the first, unless it shows no bucket and a later one does."""
    joined: dict[str, Regression] = {}
    for entry in entries:
        before = joined.get(entry.case.id)
        if before is None or (before.bucket is None and entry.bucket is not None):
            joined[entry.case.id] = entry
    return joined


def minimise(directory: Path) -> tuple[int, int, list[CaseError]]:
    """Remove the files of ``directory`` that ``minimised`` does not keep: how many there were and are, and which files
    cannot be read. Those are left alone; what a write left that was killed long ago is removed.
    """
    found, problems = read_corpus(directory)
    kept = minimised(entry for _, entry in found)
    # The new files first: an interruption leaves more than is needed, never less.
    paths = {_moved(directory, entry, found) for entry in kept}
    for path, _ in found:
        if path not in paths:
            path.unlink(missing_ok=True)
    for path in directory.rglob(".*.json.*"):
        if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
    return len(found), len(kept), problems


def _moved(directory: Path, entry: Regression, found: Sequence[tuple[Path, Regression]]) -> Path:
    """The file of an entry that is kept, under the name of its id."""
    path = directory / f"{entry.case.id}.json"
    return path if (path, entry) in found else write_entry(directory, entry)


def merge(into: Path, sources: Iterable[Path]) -> tuple[int, list[CaseError]]:
    """Add the cases of ``sources`` to ``into``: how many were new, and which files cannot be read.

    Of a case that is in several, the first entry stays, unless it shows no bucket and a later one does.
    """
    present, problems = read_corpus(into)
    entries = [entry for _, entry in present]
    before = _joined(entries)
    for source in sources:
        found, unreadable = read_corpus(source)
        problems += unreadable
        entries += [entry for _, entry in found]
    joined = _joined(entries)
    for name, entry in joined.items():
        if before.get(name) != entry:
            write_entry(into, entry)
    return len(joined) - len(before), problems


def overview(directory: Path) -> Iterator[str]:
    """What a working corpus holds, a line each."""
    found, problems = read_corpus(directory)
    entries = [entry for _, entry in found]
    cases = {entry.case.id: entry.case for entry in entries}
    seen: set[Pair] = set().union(*(pairs(entry.case) for entry in entries if entry.bucket is None))
    yield f"{directory}: {len(cases)} cases, {len(seen)} pairs of features, {len(problems)} files that cannot be read"
    buckets = sorted({entry.bucket for entry in entries if entry.bucket is not None})
    yield f"findings in {len(buckets)} buckets" + (":" if buckets else "")
    for bucket in buckets:
        smallest = min((entry.case for entry in entries if entry.bucket == bucket), key=size)
        yield f"  {bucket}: {smallest.id}"
    kept = len(minimised(entries))
    if kept < len(found):
        yield f"{len(found) - kept} files can go: tefuzz corpus minimise {directory}"
