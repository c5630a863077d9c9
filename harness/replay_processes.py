"""Replaying several kept cases at a time, each in a process that may crash or hang without ending the replay."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from harness.device import DeviceChoice, activate
from harness.fixes import reverted
from harness.judge import Judge
from harness.replay import Kept, Outcome, Replayed, replay

HANG_SECONDS = 300.0
"""Without an answer for so long a case hangs, or the imports of its process."""
POLL_SECONDS = 1.0


def replay_in_processes(
    work: Sequence[Kept],
    processes: int,
    device: DeviceChoice,
    reverts: Sequence[str],
    hang_seconds: float = HANG_SECONDS,
) -> Iterator[tuple[Kept, Replayed]]:
    """Replay ``work``, ``processes`` at a time, and yield each outcome when it is there.

    A case that takes its process with it, or hangs, is FAILED; the others go on in a new process. All processes are
    ended when the iterator is. ``RuntimeError`` when a process ends before it can replay anything.
    """
    waiting = deque(work)
    idle: list[_Worker] = []
    busy: dict[Connection, _Worker] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                worker = idle.pop() if idle else _Worker(device, reverts)
                worker.give(waiting.popleft())
                busy[worker.connection] = worker
            answered = {connection for connection in wait(list(busy), POLL_SECONDS) if connection in busy}
            for connection, worker in list(busy.items()):
                if connection in answered:
                    if not worker.ready:
                        worker.wait_until_ready()
                        continue
                    result = worker.answer()
                elif worker.seconds > hang_seconds:
                    result = worker.lost(f"hang: no answer after {worker.seconds:.0f} s")
                else:
                    continue
                del busy[connection]
                if worker.alive:
                    idle.append(worker)
                assert worker.kept is not None
                yield worker.kept, result
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()


@dataclass
class _Worker:
    """A process that replays one case after the other."""

    device: DeviceChoice
    reverts: Sequence[str]
    kept: Kept | None = None
    ready: bool = False
    """Whether it has imported the subjects."""
    alive: bool = True
    connection: Connection = field(init=False)
    process: SpawnProcess = field(init=False)
    started: float = 0.0

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.device, tuple(self.reverts)), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def seconds(self) -> float:
        """Since the case was given."""
        return time.monotonic() - self.started

    def give(self, kept: Kept) -> None:
        """Hand over the next case."""
        self.kept, self.started = kept, time.monotonic()
        self.connection.send(kept)

    def wait_until_ready(self) -> None:
        """Take the word that the subjects are imported."""
        try:
            self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise RuntimeError(
                f"a process of the replay {_ending(self.process.exitcode)} before it could replay anything; "
                "what it printed says why"
            ) from None
        self.ready, self.started = True, time.monotonic()

    def answer(self) -> Replayed:
        """The outcome, or that there will be none."""
        try:
            result: Replayed = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return self.lost(f"crash: its process {_ending(self.process.exitcode)}")
        return result

    def lost(self, why: str) -> Replayed:
        """What is said of a case that gave no answer; the process is ended."""
        assert self.kept is not None
        self.end()
        return Replayed(self.kept.name, Outcome.FAILED, why, self.seconds)

    def end(self) -> None:
        """End the process, whatever it does."""
        self.alive = False
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, device: DeviceChoice, reverts: Sequence[str]) -> None:
    """The process: replay what comes until nothing more does."""
    # Ctrl-C is for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    judge = Judge.of(activate(device))
    with reverted(reverts):
        connection.send("ready")
        while True:
            try:
                kept = connection.recv()
            except EOFError:
                return
            connection.send(replay(judge, kept, reverts))


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
