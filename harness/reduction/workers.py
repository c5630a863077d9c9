"""Processes that run cases: a case may crash or hang the one that runs it, which is an outcome like any other."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from harness.bucket import digest
from harness.case import Case
from harness.device import DeviceChoice, DeviceError, activate
from harness.fixes import FixError, reverted
from harness.judge import Judge

HANG_SECONDS = 300.0
"""A case that takes longer has hung."""


class Found(msgspec.Struct, frozen=True):
    """One finding of a case, as a process can tell another."""

    bucket: str
    issue: str | None
    """The known issue that explains it."""

    @property
    def digest(self) -> str:
        """The ten digits of the bucket."""
        return digest(self.bucket)


class Outcome(msgspec.Struct, frozen=True):
    """What became of one case."""

    found: tuple[Found, ...] = ()
    """Those that no known issue explains come first."""
    error: str = ""
    """An exception of tefuzz itself: there is no verdict."""
    refusal: str = ""
    """Why this process can run no case at all."""


class Job(msgspec.Struct, frozen=True):
    """One case to run; without ``thorough`` no further than to its first findings."""

    case: Case
    thorough: bool


Serve = Callable[[Connection], None]
"""What a worker process does: answer each ``Job`` that it receives by an ``Outcome``. It has to be picklable."""


class Workers:
    """``count`` processes that run ``serve``; close them at the end."""

    def __init__(self, count: int, serve: Serve) -> None:
        self._serve = serve
        self._workers = [_Worker(serve) for _ in range(count)]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._workers)

    @property
    def idle(self) -> int:
        """How many could take a job."""
        return sum(worker.job is None for worker in self._workers)

    @property
    def jobs(self) -> list[Job]:
        """Those that are running."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def submit(self, job: Job) -> None:
        """Start a job on an idle worker."""
        next(worker for worker in self._workers if worker.job is None).start(job)

    def wait(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended, at least one."""
        while True:
            busy = [worker for worker in self._workers if worker.job is not None]
            assert busy, "nothing to wait for"
            patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            connection.wait([worker.connection for worker in busy], patience)
            ended = [(worker, outcome) for worker in busy if (outcome := worker.outcome()) is not None]
            if ended:
                return [(self._finish(worker), outcome) for worker, outcome in ended]

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()

    def _finish(self, worker: _Worker) -> Job:
        job = worker.job
        assert job is not None
        worker.job = None
        if worker.is_lost:
            worker.close()
            self._workers[self._workers.index(worker)] = _Worker(self._serve)
        return job


class _Worker:
    """One process, seen from the one that started it."""

    def __init__(self, serve: Serve) -> None:
        # Spawned, not forked: torch has threads.
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.job: Job | None = None
        self.deadline = 0.0
        self.is_lost = False

    def start(self, job: Job) -> None:
        self.job = job
        self.deadline = time.monotonic() + HANG_SECONDS
        try:
            self.connection.send_bytes(msgspec.json.encode(job))
        except OSError:
            self.is_lost = True

    def outcome(self) -> Outcome | None:
        """What became of the job; None while it runs."""
        try:
            if not self.is_lost and self.connection.poll():
                return msgspec.json.decode(self.connection.recv_bytes(), type=Outcome)
        except (EOFError, OSError):
            self.is_lost = True
        if self.is_lost:
            self._process.join()
            return Outcome((Found(_death(self._process.exitcode), None),))
        if time.monotonic() < self.deadline:
            return None
        self.is_lost = True
        return Outcome((Found(f"process/hang/no verdict within {HANG_SECONDS:.0f} s", None),))

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _death(exit_code: int | None) -> str:
    """Names the end of a process as a bucket is named."""
    if exit_code is not None and exit_code < 0:
        return f"process/crash/{signal.Signals(-exit_code).name}"
    return f"process/crash/exit status {exit_code}"


def case_runner(device: DeviceChoice, reverts: Sequence[str]) -> Serve:
    """Runs cases on a device with fixes undone."""
    return partial(_run_cases, device, tuple(reverts))


def _run_cases(device: DeviceChoice, reverts: tuple[str, ...], orders: Connection) -> None:
    """Run one case after the other until nobody sends any more."""
    # Ctrl-C is for the process that reduces; it ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with ExitStack() as stack, suppress(EOFError):
        refusal = ""
        try:
            judge = Judge.of(activate(device))
            stack.enter_context(reverted(reverts))
        except (DeviceError, ModuleNotFoundError, FixError) as error:
            refusal = str(error)
        while True:
            job = msgspec.json.decode(orders.recv_bytes(), type=Job)
            outcome = Outcome(refusal=refusal) if refusal else _outcome(judge, job)
            orders.send_bytes(msgspec.json.encode(outcome))


def _outcome(judge: Judge, job: Job) -> Outcome:
    try:
        judgement = judge.judge(job.case, thorough=job.thorough)
    except Exception:  # noqa: BLE001  one case that breaks the harness must not end the reduction of others
        return Outcome(error=traceback.format_exc())
    unexplained = [Found(str(finding.bucket), None) for finding in judgement.unexplained]
    return Outcome((*unexplained, *(Found(str(finding.bucket), issue.id) for finding, issue in judgement.explained)))
