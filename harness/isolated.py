"""The program of a child process that runs cases for ``harness.isolation``: ``python -m harness.isolated``.

Arguments: the file descriptor of the connection to the parent, and ``Settings`` as JSON.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.device import DeviceError, activate
from harness.fixes import FixError, missing_fixes, reverted
from harness.isolation import Ask, Broken, Died, Ended, Found, Judged, Message, Ready, Refused, Settings, Started

if TYPE_CHECKING:
    from harness.run import Verdict

STATM = Path("/proc/self/statm")
"""Sizes of this process in pages: address space, resident set, ..."""


def main(descriptor: int, settings: Settings) -> None:
    """Run cases until the parent is gone."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    try:
        environment = activate(settings.device)
        missing = missing_fixes() if settings.check_fixes else []
        with reverted(settings.reverts):
            _prepare(environment.device, settings)
            _say(
                connection,
                Ready(
                    environment=environment,
                    missing_fixes=tuple(f"{fix.name} ({fix.title}), which {fix.first_release} has" for fix in missing),
                ),
            )
            # What a GPU's driver has started does not survive a fork; then each process is spawned by the parent.
            serve = _serve_in_forks if environment.device == "cpu" else _serve
            serve(connection, environment.device)
    except (DeviceError, FixError) as error:
        _say(connection, Refused(message=str(error)))
    except ModuleNotFoundError as error:
        words = f"{error.name} is not installed. Install tefuzz with what it needs: `pip install -e .`"
        _say(connection, Refused(message=words))
    except ConnectionError:
        pass  # the parent is gone


def _say(connection: Connection, message: Message) -> None:
    connection.send_bytes(msgspec.json.encode(message))


def _serve_in_forks(connection: Connection, device: str) -> None:
    """Run cases in a fork of this process, and in another one when that is gone: the imports are paid for once.

    This process has run no case and has one thread.
    """
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _serve(connection, device)
                status = 0
            except ConnectionError:
                pass
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        _say(connection, Died(status=os.waitstatus_to_exitcode(status)))


def _serve(connection: Connection, device: str) -> None:
    """Run one case after the other, until one should have ended this process or the parent is gone."""
    while True:
        try:
            ask = msgspec.json.decode(connection.recv_bytes(), type=Ask)
        except EOFError:
            return
        message = _run(ask, device, connection)
        _say(connection, message)
        if isinstance(message, Ended):
            return


def _prepare(device: str, settings: Settings) -> None:
    import harness.run  # noqa: F401  no case is to pay for imports

    # What the imports made lives as long as the process: the garbage collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    if device == "cpu" and STATM.exists():
        limit = int(STATM.read_text().split()[0]) * resource.getpagesize() + settings.case_memory
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _run(ask: Ask, device: str, connection: Connection) -> Message:
    """Run one case; it may also end this process here."""
    from harness.run import PAIRS, pair_name

    _say(connection, Started(subject=PAIRS[pair_name(ask.case)][0].name))
    faulthandler.dump_traceback_later(ask.seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        message = _outcome(ask, device)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if isinstance(message, Judged):
        # Now that nothing holds the tensors of the case.
        return msgspec.structs.replace(message, memory=_memory(device))
    return message


def _outcome(ask: Ask, device: str) -> Message:
    from harness.checks.exceptions import normalised
    from harness.fingerprint import fingerprint
    from harness.run import run_case

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Thunder's and TE's own: no user of tefuzz can mend them
            verdict = run_case(ask.case, thorough=ask.thorough)
        return _exhausted(verdict) or _device_error(device) or _judged(verdict, fingerprint(verdict))
    except Exception as error:  # noqa: BLE001  the boundary of the process
        if _is_exhaustion(error):
            return Ended(check="out of memory", where=normalised(error), message=traceback.format_exc())
        return Broken(traceback=traceback.format_exc())
    except BaseException as error:  # noqa: BLE001  SystemExit and its like are the subject's: nothing here exits
        words = f"The case left its process by {type(error).__name__}.\n{traceback.format_exc()}"
        return Ended(check="exit", where=type(error).__name__, message=words)


def _judged(verdict: Verdict, fingerprint: str) -> Judged:
    return Judged(
        findings=tuple(
            Found(kind=type(finding).__name__, bucket=finding.bucket, message=finding.message, place=finding.place)
            for finding in verdict.findings
        ),
        refusal=verdict.refusal,
        te_linears=verdict.te_linears,
        seconds=verdict.seconds,
        fingerprint=fingerprint,
        memory=0,
    )


def _exhausted(verdict: Verdict) -> Ended | None:
    """Either side ran out of memory, be it that both did alike."""
    from harness.checks.exceptions import normalised

    for observation in (verdict.run.subject, verdict.run.reference):
        failure = observation.failure
        if failure is not None and _is_exhaustion(failure.error):
            words = f"{observation.subject} ran out of memory in {failure.stage}:\n{failure.stack}"
            return Ended(check="out of memory", where=normalised(failure.error), message=words)
    return None


def _is_exhaustion(error: Exception) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's CPU allocator raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc")
    )


def _device_error(device: str) -> Ended | None:
    """What asynchronous work of the case left behind: an error of CUDA stays until the process ends."""
    if device != "cuda":
        return None
    import torch

    from harness.checks.exceptions import normalised

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        words = f"The case left the device in an error state:\n{traceback.format_exc()}"
        return Ended(check="device error", where=normalised(error), message=words)
    return None


def _memory(device: str) -> int:
    """Bytes in use now that the case is done."""
    if device == "cuda":
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()
    if not STATM.exists():
        return 0
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Settings))
