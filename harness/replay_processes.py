"""Replaying several kept cases at a time, each in a child process that it may crash or hang."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from harness.isolation import IsolatedRunner
from harness.judge import IsolatedJudge
from harness.replay import Kept, Replayed, replay


def replay_in_processes(work: Sequence[Kept], runners: Sequence[IsolatedRunner]) -> Iterator[tuple[Kept, Replayed]]:
    """Replay ``work`` with ``runners`` at the same time and yield each outcome when it is there.

    What a case does to its process is a finding (``harness.isolation``). All children are ended when the iterator is.
    Raises what a child cannot start for: ``DeviceError`` or ``IsolationError``.
    """
    waiting = deque(work)
    answers: queue.SimpleQueue[tuple[Kept, Replayed] | Exception] = queue.SimpleQueue()
    stopped = threading.Event()
    runners = runners[: len(work)]

    def lane(runner: IsolatedRunner) -> None:
        try:
            judge = IsolatedJudge.of(runner)
            # Lanes take from the same list; one of them is always the last to look.
            with suppress(IndexError):
                while not stopped.is_set():
                    kept = waiting.popleft()
                    answers.put((kept, replay(judge, kept, runner.settings.reverts)))
        except Exception as error:  # noqa: BLE001  raised again where the iterator is read
            answers.put(error)

    lanes = [threading.Thread(target=lane, args=(runner,), daemon=True) for runner in runners]
    try:
        for thread in lanes:
            thread.start()
        for _ in work:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        stopped.set()
        for runner in runners:
            runner.close()
