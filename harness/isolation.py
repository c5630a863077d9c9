"""Running cases in a child process: whatever a case does to its process is a finding, and the run goes on.

    with IsolatedRunner(Settings()) as runner:
        verdict = runner.run(case)

The child is spawned and runs one case after the other, so that only the first pays for the imports. It is replaced
when a case has ended it, hung, or left the device in an error state. On the CPU the spawned child only imports; the
cases run in its forks, so that another one is there at once. On CUDA nothing is ever forked. Nothing here imports
torch: a process that draws and shrinks cases stays small and cannot be harmed by them. ``harness.isolated`` is the
child's program.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, ClassVar

import msgspec

from harness.bucket import Bucket, finding_text, recipe_name
from harness.case import Case, Data
from harness.device import DeviceChoice, DeviceError, Environment

START_SECONDS = 600.0
"""For a child to import torch, Thunder and TE."""
GRACE_SECONDS = 10.0
"""How long after its time limit a child may take to write down its stacks."""
POLL_SECONDS = 0.2
OUTPUT_CHARACTERS = 20_000
"""Kept of what a case printed before it ended its process; the stacks come first."""


class IsolationError(RuntimeError):
    """The child failed by a fault of tefuzz or of the installation, not by one of the case."""


class Settings(Data, frozen=True, kw_only=True):
    """How a child process runs cases."""

    device: DeviceChoice = "auto"
    reverts: tuple[str, ...] = ()
    """Fixes to undo in the child."""
    case_seconds: float = 300.0
    """After so long a case counts as hung."""
    case_memory: int = 8 * 2**30
    """Bytes that the child may allocate beyond what its imports took; without effect on CUDA, whose driver reserves
    address space without end."""
    check_fixes: bool = False
    """Whether the child looks for missing fixes when it starts."""


# What parent and child say to each other, as JSON: nothing is ever unpickled.


class Ask(Data, frozen=True, kw_only=True):
    """To the child: run this case."""

    case: Case
    thorough: bool
    seconds: float


class Ready(Data, frozen=True, kw_only=True, tag=True):
    """The child has imported everything."""

    environment: Environment
    missing_fixes: tuple[str, ...]


class Refused(Data, frozen=True, kw_only=True, tag=True):
    """The child cannot run cases here."""

    message: str


class Started(Data, frozen=True, kw_only=True, tag=True):
    """The child begins with the case."""

    subject: str


class Found(Data, frozen=True, kw_only=True):
    """A finding in words."""

    kind: str
    """Name of its class."""
    bucket: Bucket
    message: str
    place: str = ""


class Judged(Data, frozen=True, kw_only=True, tag=True):
    """The case ran to its end."""

    findings: tuple[Found, ...]
    refusal: str | None
    te_linears: int
    seconds: dict[str, float]
    fingerprint: str
    memory: int
    """Bytes in use after the case: of the device on CUDA, of the child process otherwise."""


class Ended(Data, frozen=True, kw_only=True, tag=True):
    """The case did what should have ended the process; the child is to be replaced."""

    check: str
    where: str
    message: str


class Broken(Data, frozen=True, kw_only=True, tag=True):
    """The harness itself raised."""

    traceback: str


class Died(Data, frozen=True, kw_only=True, tag=True):
    """The fork that ran cases is gone, by itself or after ``Ended``, and there is a new one."""

    status: int
    """Its exit status, or minus the signal that ended it."""


Message = Ready | Refused | Started | Judged | Ended | Broken | Died


class ReportedFinding(AssertionError):
    """A finding that another process made. Its subclasses carry the names of the kinds of findings."""

    essence: str | None = None
    """A few lines for the terminal, where a fuzz run made them."""

    def __init__(self, case: Case, bucket: Bucket, message: str, place: str = "") -> None:
        super().__init__(message)
        self.case = case
        self.bucket = bucket
        self.message = message
        self.place = place

    @property
    def check(self) -> str:
        """The check that made the finding."""
        return self.bucket.check

    def __str__(self) -> str:
        return finding_text(self.message, self.bucket, self.case)


class ProcessFinding(ReportedFinding):
    """What a case did to the process that ran it."""

    sentence: ClassVar[str] = "The case ended its process"


class CaseCrashed(ProcessFinding):
    """A signal other than SIGABRT ended the process: segmentation fault, bus error, illegal instruction."""

    sentence: ClassVar[str] = "The case crashed its process"


class CaseAborted(ProcessFinding):
    """``abort``: a failed assertion of C or C++, an uncaught exception of C++."""

    sentence: ClassVar[str] = "The case aborted its process"


class CaseHung(ProcessFinding):
    """The case did not end within its time limit."""

    sentence: ClassVar[str] = "The case did not end"


class CaseRanOutOfMemory(ProcessFinding):
    """The case needed more memory than its limit."""

    sentence: ClassVar[str] = "The case ran out of memory"


class CaseExited(ProcessFinding):
    """``SystemExit``, ``os._exit`` or another way to leave."""

    sentence: ClassVar[str] = "The case left its process"


class DeviceFailed(ProcessFinding):
    """The device is in an error state that only a new process gets rid of."""

    sentence: ClassVar[str] = "The case left the device in an error state"


class VerdictNotDeterministic(ReportedFinding):
    """The case gave one result in the process that met it and another in a new one."""


PROCESS_FINDINGS: dict[str, type[ProcessFinding]] = {
    "crash": CaseCrashed,
    "abort": CaseAborted,
    "hang": CaseHung,
    "out of memory": CaseRanOutOfMemory,
    "exit": CaseExited,
    "device error": DeviceFailed,
}
"""By the check that buckets and known issues name."""


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    """A ``harness.run.Verdict`` that another process made: all but what was observed."""

    case: Case
    findings: tuple[ReportedFinding, ...]
    refusal: str | None
    te_linears: int
    seconds: dict[str, float]
    fingerprint: str
    """Over all numbers that were observed and all that was found (``harness.fingerprint``)."""
    memory: int = 0
    """Bytes in use after the case, 0 where nobody looked."""

    def without_observations(self) -> ReportedVerdict:
        """What is worth remembering of a case that may come again."""
        return self


class IsolatedRunner:
    """Runs cases in a child process, and in another one when the first is gone."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes = 0
        """Processes so far that could run cases."""
        self._child: _Child | None = None

    def __enter__(self) -> IsolatedRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ready(self) -> Ready:
        """Wait until a child can run cases. ``DeviceError`` says why none can."""
        if self._child is None:
            self.processes += 1
            self._child = _Child(self.settings)
        try:
            return self._child.ready()
        except BaseException:
            self.close()
            raise

    def run(self, case: Case, *, thorough: bool = True, seconds: float | None = None) -> ReportedVerdict:
        """Run ``case`` as ``harness.run.run_case`` does, for ``seconds`` at most (those of the settings)."""
        self.ready()
        assert self._child is not None
        started = time.perf_counter()
        limit = self.settings.case_seconds if seconds is None else seconds
        try:
            subject, end = self._child.run(Ask(case=case, thorough=thorough, seconds=limit))
        except BaseException:
            # What the child would say next belongs to this case.
            self.close()
            raise
        if isinstance(end, Broken):
            raise IsolationError(end.traceback)
        if isinstance(end, Judged):
            return _verdict(case, end)
        if self._child.renewed:
            self.processes += 1
        else:
            self.close()
        return _ended(case, subject, end, time.perf_counter() - started)

    def close(self) -> None:
        """End the child; the next case starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.close()


def _verdict(case: Case, judged: Judged) -> ReportedVerdict:
    findings = tuple(_kind(found.kind)(case, found.bucket, found.message, found.place) for found in judged.findings)
    return ReportedVerdict(
        case, findings, judged.refusal, judged.te_linears, judged.seconds, judged.fingerprint, judged.memory
    )


def _ended(case: Case, subject: str, end: Ended, seconds: float) -> ReportedVerdict:
    bucket = Bucket(end.check, "run", end.where, subject, recipe_name(case))
    finding = PROCESS_FINDINGS[end.check](case, bucket, end.message)
    return ReportedVerdict(case, (finding,), None, 0, {"subject": seconds}, f"{end.check}")


@lru_cache(maxsize=256)
def _kind(name: str) -> type[ReportedFinding]:
    return type(name, (ReportedFinding,), {"__module__": ReportedFinding.__module__})


class _Child:
    """One child process."""

    def __init__(self, settings: Settings) -> None:
        ours, theirs = socket.socketpair()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        command = [sys.executable, "-X", "faulthandler", "-m", "harness.isolated", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                [*command, msgspec.json.encode(settings).decode()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # A session of its own: Ctrl-C is for the parent, which then ends the child.
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = Connection(ours.detach())
        self._ready: Ready | None = None
        self._closing = Lock()
        self._printed_before = 0
        self.renewed = False
        """Whether another process runs the next case than ran the last one."""

    def ready(self) -> Ready:
        """What the child said when it was ready."""
        if self._ready is None:
            first = self._receive(START_SECONDS)
            if isinstance(first, Refused):
                raise DeviceError(first.message)
            if not isinstance(first, Ready):
                reason = first.traceback if isinstance(first, Broken) else self._printed()
                raise IsolationError(f"the process that is to run the cases did not start:\n{reason}")
            self._ready = first
        return self._ready

    def run(self, ask: Ask) -> tuple[str, Judged | Ended | Broken]:
        """The name of the subject and how the case ended."""
        self._printed_before = self._output.seek(0, os.SEEK_END)
        self.renewed = False
        subject = "unknown subject"
        try:
            self._connection.send_bytes(msgspec.json.encode(ask))
            message = self._receive(ask.seconds)
            if isinstance(message, Started):
                subject = message.subject
                message = self._receive(ask.seconds + GRACE_SECONDS)
        except OSError:
            message = None
        match message:
            case Judged() | Broken():
                return subject, message
            case Ended():
                self.renewed = isinstance(self._receive(GRACE_SECONDS), Died)
                return subject, message
            case Died():
                self.renewed = True
                return subject, self._death(message.status, ask.seconds)
            case _:
                return subject, self._death(self._status(), ask.seconds)

    def close(self) -> None:
        """End the process and all that it started. Safe in any thread, also while another one waits for an answer."""
        with self._closing:
            if not self._connection.closed:
                self._kill()
                self._connection.close()
                self._output.close()

    def _receive(self, seconds: float) -> Message | None:
        """The next message; None when the child is gone or says nothing for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ended = self._process.poll() is not None
            try:
                if self._connection.poll(0 if ended else min(left, POLL_SECONDS)):
                    return msgspec.json.decode(self._connection.recv_bytes(), type=Message)
            except (EOFError, OSError):
                return None
            if ended:
                return None
        return None

    def _status(self) -> int | None:
        """How the process ended, None if it had to be killed."""
        try:
            status: int | None = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = None
        self._kill()
        return status

    def _death(self, status: int | None, seconds: float) -> Ended:
        """What became of a process that gave no answer."""
        printed = self._printed()
        if status is None or "\nTimeout (" in f"\n{printed}":
            check, where, how = "hang", "no end", f"in {seconds:g} s"
        elif status < 0:
            name = signal.Signals(-status).name
            check = {signal.SIGABRT: "abort", signal.SIGKILL: "out of memory"}.get(signal.Signals(-status), "crash")
            frame = _innermost_frame(printed)
            where, how = (f"{name} in {frame}" if frame else name), f"by {name}"
            if check == "out of memory":
                how += ", which is how the kernel ends a process that uses up the memory"
        else:
            check, where, how = "exit", "status", f"with status {status}"
        return Ended(check=check, where=where, message=f"{PROCESS_FINDINGS[check].sentence} {how}.\n{printed}".rstrip())

    def _printed(self) -> str:
        """What the child printed since it got its case."""
        self._output.seek(self._printed_before)
        text = self._output.read().decode(errors="replace")
        return re.sub(r"\nExtension modules: .*", "", text).strip()[:OUTPUT_CHARACTERS]

    def _kill(self) -> None:
        # The group: a subject may have started processes of its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _innermost_frame(printed: str) -> str | None:
    """Where Python was in the thread that crashed, by faulthandler's listing; without the line, which releases move."""
    frame = re.search(r'^(?:Current thread|Thread) .*\n  File "(.*)", line \d+ in (\S+)', printed, re.MULTILINE)
    return f"{Path(frame[1]).parent.name}.{Path(frame[1]).stem}:{frame[2]}" if frame else None
