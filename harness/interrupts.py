"""Ctrl-C ends a run, whatever the subject makes of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end for a Ctrl-C that was swallowed inside.

    Thunder turns one that hits its tracing into an InterpreterError: it would end up as a finding.
    """
    usual = threading.current_thread() is threading.main_thread()
    if not usual or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else decides what Ctrl-C does
        return
    interrupted = False

    def note(signal_number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(signal_number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
