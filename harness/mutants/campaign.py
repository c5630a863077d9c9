"""A campaign: each mutant is searched for in a process of its own, several at a time.

A mutant may crash or hang the process that runs it, which is a result. So the campaign only starts processes, looks
whether they have ended and reads what they leave.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.case import Case, CaseError, load_case
from harness.mutants.base import Mutant
from harness.mutants.results import Result

HANG_SECONDS = 180.0
"""A process that goes on for so long after its time box hangs in one case."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """How far each search goes."""

    max_examples: int
    time_box: float
    """Seconds in which to find and to shrink; then what was found counts."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where the process of one mutant leaves what it has done."""

    directory: Path

    @property
    def result(self) -> Path:
        """The ``Result``, when the search has ended."""
        return self.directory / "result.json"

    @property
    def in_flight(self) -> Path:
        """The case that is running."""
        return self.directory / "in-flight.json"

    @property
    def output(self) -> Path:
        """What the process prints."""
        return self.directory / "output.txt"


Command = Callable[[Mutant, Limits, Files], list[str]]
"""The command line of the process that searches for one mutant."""


def run_campaign(
    mutants: Sequence[Mutant], limits: Limits, workers: int, command: Command, report: Callable[[Result], None]
) -> None:
    """Search for all ``mutants``, ``workers`` at a time, and report each result as soon as it is there.

    All processes are ended before this returns, also by an exception such as Ctrl-C.
    """
    waiting = list(reversed(mutants))
    running: list[_Search] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Search(waiting.pop(), limits, command))
            ended = [(search, result) for search in running if (result := search.result()) is not None]
            for search, result in ended:
                search.close()
                running.remove(search)
                report(result)
            if not ended:
                time.sleep(POLL_SECONDS)
    finally:
        for search in running:
            search.close()


class _Search:
    """The process that searches for one mutant."""

    def __init__(self, mutant: Mutant, limits: Limits, command: Command) -> None:
        self._mutant = mutant
        self._limits = limits
        self._directory = tempfile.TemporaryDirectory(prefix="tefuzz-mutant-")
        self._files = Files(Path(self._directory.name))
        self._started = time.monotonic()
        with self._files.output.open("wb") as output:
            self._process = subprocess.Popen(
                command(mutant, limits, self._files),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A group of its own: Ctrl-C is for the campaign, which then ends the group.
                start_new_session=True,
            )

    def result(self) -> Result | None:
        """What became of the mutant; None while the process runs."""
        status = self._process.poll()
        if status is None:
            if self._seconds() > self._limits.time_box + HANG_SECONDS:
                return self._without_result("killed", "hang")
            return None
        try:
            return msgspec.json.decode(self._files.result.read_bytes(), type=Result)
        except (OSError, msgspec.DecodeError):
            pass
        if status < 0:
            return self._without_result("killed", "crash")
        return self._without_result("error", self._last_words() or f"the process ended with status {status}")

    def close(self) -> None:
        """End the process and what it started, if it still runs, and remove its files."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._directory.cleanup()

    def _without_result(self, outcome: str, by: str) -> Result:
        return msgspec.convert(
            {
                "mutant": self._mutant.name,
                "digest": self._mutant.digest,
                "outcome": outcome,
                "by": by,
                "max_examples": self._limits.max_examples,
                "seconds": round(self._seconds(), 1),
                "case": self._case_in_flight(),
            },
            Result,
        )

    def _case_in_flight(self) -> Case | None:
        try:
            return load_case(self._files.in_flight)
        except CaseError:
            return None

    def _last_words(self) -> str:
        lines = self._files.output.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _seconds(self) -> float:
        return time.monotonic() - self._started
