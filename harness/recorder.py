"""What a fuzz run leaves on disk, written so that a crash, a hang or Ctrl-C loses at most the case in flight.

A run has a directory ``.tefuzz/runs/<name>/``. Each worker appends one JSON line per case to ``<worker>.jsonl`` and
writes the case that it is about to run to ``<worker>.in-flight.json`` first. Failing cases go to ``failures/``, one
file per bucket: Hypothesis runs the shrunk case last, so the file ends up with that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.case import Case, Data, canonical_json, describe, pretty_json, walk
from harness.features import features

if TYPE_CHECKING:
    from harness.bucket import Bucket
    from harness.isolation import ReportedVerdict
    from harness.run import Verdict


RUN_INFO = "run.info"
"""JSON, but not to those who look for cases."""


class CaseRecord(Data, frozen=True, kw_only=True):
    """One executed case."""

    case_id: str
    test: str
    model: str
    features: tuple[str, ...]
    seconds: dict[str, float]
    te_linears: int
    fell_back: bool
    """FP8 was asked for and TE ran no linear."""
    refusal: str | None
    bucket: str | None
    known_issue: str | None
    finished: float
    """Seconds since the epoch."""
    layers: int = 0
    steps: int = 0
    size: int = 0
    """Bytes of its canonical JSON: how a case shrank."""
    item: str = ""
    """Node id of the test, which is a shard; empty where that was not recorded."""
    memory: int = 0
    """Bytes in use after the case, of the device on CUDA and of the process otherwise; 0 where nobody looked."""


class RunInfo(Data, frozen=True, kw_only=True):
    """What a run was: what its cases alone do not tell."""

    profile: str
    seed: int
    reverts: tuple[str, ...] = ()
    started: float
    """Seconds since the epoch."""
    environment: str = ""
    """Versions and device."""


class Recorder:
    """Writes the records of one worker."""

    def __init__(self, directory: Path, worker: str) -> None:
        self.directory = directory
        (directory / "failures").mkdir(parents=True, exist_ok=True)
        self._in_flight = directory / f"{worker}.in-flight.json"
        # Line-buffered: a line is on disk when the case is done.
        self._records = (directory / f"{worker}.jsonl").open("a", buffering=1)

    def before(self, case: Case) -> None:
        """Leave a trace of ``case`` in case it takes the process with it."""
        write_atomically(self._in_flight, pretty_json(case))

    def after(self, test: str, verdict: Verdict | ReportedVerdict, known_issue: str | None, item: str = "") -> None:
        """Record a verdict."""
        case = verdict.case
        wants_te = case.precision.recipe is not None and case.jit is not None and case.jit.executor != "torch"
        record = CaseRecord(
            case_id=case.id,
            test=test,
            model=describe(case.layers, case.input.features),
            features=tuple(sorted(features(case))),
            seconds=verdict.seconds,
            te_linears=verdict.te_linears,
            fell_back=wants_te and verdict.te_linears == 0,
            refusal=verdict.refusal,
            bucket=str(verdict.findings[0].bucket) if verdict.findings else None,
            known_issue=known_issue,
            finished=time.time(),
            layers=len(list(walk(case.layers))),
            steps=len(case.steps),
            size=len(canonical_json(case)),
            item=item,
            memory=getattr(verdict, "memory", 0),
        )
        self._records.write(msgspec.json.encode(record).decode() + "\n")
        self._in_flight.unlink(missing_ok=True)

    def failure_path(self, verdict: Verdict | ReportedVerdict) -> Path:
        """Keep the failing case of a verdict; a later one of the same bucket replaces it."""
        path = failure_file(self.directory, verdict.findings[0].bucket.digest)
        write_atomically(path, pretty_json(verdict.case))
        return path

    def claim(self, bucket: Bucket, test: str) -> bool:
        """Whether ``bucket`` is for ``test`` to shrink: it is for the first test of the run that says so."""
        path = self.directory / "failures" / f"{bucket.digest}.claim"
        try:
            with path.open("x") as file:
                file.write(test)
        except FileExistsError:
            return path.read_text() == test
        return True

    def describe_failure(self, verdict: Verdict | ReportedVerdict, text: str) -> None:
        """Keep a few lines beside the failing case, for those who read the run without running anything."""
        write_atomically(self.directory / "failures" / f"{verdict.findings[0].bucket.digest}.txt", text + "\n")

    def describe_run(self, info: RunInfo) -> None:
        """Say once what the run is; all its workers would say the same."""
        path = self.directory / RUN_INFO
        if not path.exists():
            write_atomically(path, msgspec.json.encode(info).decode())

    def close(self) -> None:
        """Flush what is left."""
        self._records.close()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new content, whatever happens in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def read_records(directory: Path, files: str = "*.jsonl") -> Iterator[CaseRecord]:
    """The records of a run, those of all workers; a line cut off by a crash is passed over."""
    for path in sorted(directory.glob(files)):
        # Bytes: a line may be cut in the middle of a character.
        for line in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(line, type=CaseRecord)
            except msgspec.DecodeError:
                continue


def failure_file(directory: Path, digest: str) -> Path:
    """Where the failing case of a bucket is kept."""
    return directory / "failures" / f"{digest}.json"


def run_info(directory: Path) -> RunInfo | None:
    """What a run was; None where that was not recorded."""
    try:
        return msgspec.json.decode((directory / RUN_INFO).read_bytes(), type=RunInfo)
    except (OSError, msgspec.DecodeError):
        return None


def failure_text(directory: Path, digest: str) -> str:
    """The few lines about the failing case of a bucket; empty where there are none."""
    try:
        return (directory / "failures" / f"{digest}.txt").read_text().rstrip()
    except OSError:
        return ""


def in_flight(directory: Path) -> list[Path]:
    """Cases that were running when their worker died."""
    return sorted(directory.glob("*.in-flight.json"))
