"""Reduce a case within its bucket: take the first simpler form that still shows it, until there is none.

What comes out depends on the case alone. Workers run candidates ahead of their turn, but the first one in order that
is in the bucket is taken, however early a later one was done. The state on disk holds all that is known, so a
reduction that was interrupted goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.bucket import digest
from harness.case import Case, CaseError, Data, decode, describe, pretty_json, replace, walk
from harness.device import installed_versions
from harness.recorder import write_atomically
from harness.reduction.candidates import Position, candidates
from harness.reduction.workers import Found, Job, Outcome, Workers

STATE_VERSION = 1


class NothingToReduceError(ValueError):
    """The case cannot be run, or does not show what it should; the message says why and what to do."""


class Target(Data, frozen=True, kw_only=True):
    """What every smaller case has to show."""

    bucket: str
    issue: str | None = None
    """The known issue that explains it: a reduction does not turn a new finding into a known one."""
    thorough: bool = False
    """Whether cases have to be run to their end to see it."""

    @property
    def digest(self) -> str:
        """The ten digits of the bucket."""
        return digest(self.bucket)

    def is_in(self, outcome: Outcome) -> bool:
        """Whether a case with this outcome shows it."""
        return Found(bucket=self.bucket, issue=self.issue) in outcome.found


class Size(Data, frozen=True, kw_only=True):
    """How large the best case was at one time."""

    executions: int
    seconds: float
    layers: int
    steps: int
    model: str


class State(Data, frozen=True, kw_only=True):
    """What is known in the middle of a reduction."""

    version: int = STATE_VERSION
    case: str
    """Id of the case that is reduced."""
    reverts: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    """Of the packages whose bug it is: under others cases may show something else."""
    target: Target
    best: Case
    position: tuple[int, ...] = ()
    """Candidates of the best case before this one were tried."""
    changed: bool = False
    """Whether the best case changed since the candidates were last begun from the first."""
    tried: dict[str, bool] = msgspec.field(default_factory=dict)
    """Id of each case that was run -> whether it shows the target."""
    seconds: float = 0.0
    history: tuple[Size, ...] = ()
    """From the case that was given to the best one."""

    @property
    def executions(self) -> int:
        """How many cases were run."""
        return len(self.tried)


def load_state(path: Path) -> State:
    """Read the state of a reduction; ``CaseError`` when it cannot be read or used."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}).") from error
    state = decode(content, State, str(path))
    if state.version != STATE_VERSION:
        raise CaseError(f"{path}: written by another version of tefuzz.")
    return state


def begin(workers: Workers, case: Case, bucket: str | None, reverts: Sequence[str]) -> State:
    """Run ``case`` to see what it shows: its strongest finding, or that in ``bucket``, is the target.

    Raises ``NothingToReduceError``.
    """
    started = time.monotonic()
    early: tuple[Found, ...] = ()
    # The first findings are seen early, without further steps and without the reference: the fuzz suite sees no others.
    for thorough in (False, True):
        workers.submit(Job(case=case, thorough=thorough))
        ((_, outcome),) = workers.wait()
        if outcome.refusal or outcome.error:
            raise NothingToReduceError(outcome.refusal or outcome.error)
        for found in outcome.found:
            if bucket in (found.bucket, found.digest) or (bucket is None and (thorough or found.issue is None)):
                late = found not in early and thorough
                target = Target(bucket=found.bucket, issue=found.issue, thorough=late)
                state = State(
                    case=case.id,
                    reverts=tuple(reverts),
                    versions=installed_versions(),
                    target=target,
                    best=case,
                    tried={case.id: True},
                    seconds=time.monotonic() - started,
                )
                return replace(state, history=(size(state),))
        early = outcome.found
    others = ", ".join(f"{one.bucket} [{one.digest}]" for one in outcome.found) or "nothing"
    expected = "a finding" if bucket is None else f"bucket {bucket}"
    raise NothingToReduceError(
        f"it does not show {expected}, but {others}. Name the fixes that were undone when it was found (--revert)."
    )


def size(state: State) -> Size:
    """How large the best case is now."""
    best = state.best
    return Size(
        executions=state.executions,
        seconds=round(state.seconds, 1),
        layers=len(list(walk(best.layers))),
        steps=len(best.steps),
        model=describe(best.layers, best.input.features),
    )


@dataclass(frozen=True, slots=True)
class Files:
    """What a reduction leaves on disk."""

    output: Path
    """The smallest case so far."""

    @property
    def state(self) -> Path:
        """What is known; no JSON to those who look for cases. It is removed at the end."""
        return self.output.with_name(f"{self.output.name}.state")


class Reduction:
    """One reduction from ``state`` on. ``report`` is told of the state whenever that is a new one."""

    def __init__(self, workers: Workers, state: State, files: Files, report: Callable[[State], None]) -> None:
        self.state = state
        self._workers = workers
        self._files = files
        self._report = report
        self._started = time.monotonic() - state.seconds
        self._save()
        self._restart(state.position)

    def run(self) -> State:
        """Reduce until nothing simpler shows the target."""
        while True:
            waiting = self._advance()
            if waiting:
                self._run_some(waiting)
            elif self.state.changed:  # one more round: the case is another one now
                self.state = replace(self.state, position=(), changed=False)
                self._restart(())
            else:
                self._files.state.unlink(missing_ok=True)
                return self.state

    @property
    def remaining(self) -> int:
        """Cases that are still to be run in this round, should none of them show the target."""
        ahead = {case.id for _, case in candidates(self.state.best, self.state.position)}
        return len(ahead - self.state.tried.keys())

    def _restart(self, first: Position) -> None:
        self._source = candidates(self.state.best, first)
        self._ahead: list[tuple[Position, Case]] = []

    def _advance(self) -> list[Case]:
        """Go over what is known, in order; give the cases that are next to be run, at most one for each worker."""
        waiting: list[Case] = []
        index = 0
        while len(waiting) < self._workers.count:
            if index == len(self._ahead):
                following = next(self._source, None)
                if following is None:
                    break
                self._ahead.append(following)
            position, case = self._ahead[index]
            shown = self.state.tried.get(case.id)
            if shown is None:
                waiting.append(case)
            elif shown and waiting:
                break  # its turn comes when those before it are known
            elif shown:
                self._take(position, case)
                index = 0
                continue
            elif not waiting:
                self._ahead.pop(0)
                continue
            index += 1
        return waiting

    def _take(self, position: Position, case: Case) -> None:
        """``case`` is the best one from now on; what comes next is what stood behind it."""
        self.state = replace(self.state, best=case, position=position, changed=True)
        self.state = replace(self.state, history=(*self.state.history, size(self.state)))
        self._restart(position)
        self._save()
        self._report(self.state)

    def _run_some(self, waiting: Sequence[Case]) -> None:
        """Give the workers what they have time for, and wait for what comes first."""
        running = [job.case for job in self._workers.jobs]
        new = [case for case in dict.fromkeys(waiting) if case not in running]
        for case in new[: self._workers.idle]:
            self._workers.submit(Job(case=case, thorough=self.state.target.thorough))
        for job, outcome in self._workers.wait():
            if outcome.refusal:
                raise NothingToReduceError(outcome.refusal)
            tried = {**self.state.tried, job.case.id: self.state.target.is_in(outcome)}
            self.state = replace(self.state, tried=tried, seconds=time.monotonic() - self._started)
        self._save()
        self._report(self.state)

    def _save(self) -> None:
        write_atomically(self._files.state, msgspec.json.encode(self.state).decode())
        write_atomically(self._files.output, pretty_json(self.state.best))
