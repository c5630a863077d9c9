"""Child processes that run cases side by side: that a case crashes or hangs its process is an outcome like others."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from harness.bucket import digest
from harness.case import Case, Data
from harness.device import DeviceError
from harness.isolation import IsolatedRunner, IsolationError, Settings
from harness.judge import IsolatedJudge


class Found(Data, frozen=True):
    """One finding of a case."""

    bucket: str
    issue: str | None = None
    """The known issue that explains it."""

    @property
    def digest(self) -> str:
        """The ten digits of the bucket."""
        return digest(self.bucket)


class Outcome(Data, frozen=True):
    """What became of one case."""

    found: tuple[Found, ...] = ()
    """Those that no known issue explains come first."""
    error: str = ""
    """An exception of tefuzz itself: there is no verdict."""
    refusal: str = ""
    """Why no case at all can be run."""


class Job(Data, frozen=True):
    """One case to run; without ``thorough`` no further than to its first findings."""

    case: Case
    thorough: bool


class Workers:
    """``count`` child processes that run cases as ``settings`` say; close them at the end."""

    def __init__(self, count: int, settings: Settings) -> None:
        self.count = count
        self._idle = [_Worker(settings) for _ in range(count)]
        self._all = [*self._idle]
        # A thread for each, which waits for its process.
        self._threads = ThreadPoolExecutor(count)
        self._running: dict[Future[Outcome], tuple[Job, _Worker]] = {}

    @property
    def idle(self) -> int:
        """How many could take a job."""
        return len(self._idle)

    @property
    def jobs(self) -> Iterable[Job]:
        """Those that are running."""
        return [job for job, _ in self._running.values()]

    def submit(self, job: Job) -> None:
        """Start a job on an idle worker."""
        worker = self._idle.pop()
        self._running[self._threads.submit(worker.outcome, job)] = (job, worker)

    def wait(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended, at least one."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        ended = []
        for future in done:
            job, worker = self._running.pop(future)
            self._idle.append(worker)
            ended.append((job, future.result()))
        return ended

    def close(self) -> None:
        """End all processes, whatever they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.close()


class _Worker:
    """One child process and what judges its cases."""

    def __init__(self, settings: Settings) -> None:
        self._runner = IsolatedRunner(settings)
        self._judge: IsolatedJudge | None = None

    def outcome(self, job: Job) -> Outcome:
        try:
            self._judge = self._judge or IsolatedJudge.of(self._runner)
            judgement = self._judge.judge(job.case, thorough=job.thorough)
        except DeviceError as error:
            return Outcome(refusal=str(error))
        except IsolationError as error:
            return Outcome(error=str(error))
        unexplained = [Found(bucket=str(finding.bucket)) for finding in judgement.unexplained]
        explained = [Found(bucket=str(finding.bucket), issue=issue.id) for finding, issue in judgement.explained]
        return Outcome(found=(*unexplained, *explained))

    def close(self) -> None:
        self._runner.close()
