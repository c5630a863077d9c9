"""Processes for ``test_replay_processes``: they have no subjects, so that they start at once."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from harness.replay import Outcome, Replayed


def work(connection: Connection, _device: str, _reverts: object) -> None:
    """Do what the file is called, or pass and say which process this is."""
    connection.send("ready")
    while True:
        try:
            kept = connection.recv()
        except EOFError:
            return
        match kept.path.stem:
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(7)
            case "hang":
                time.sleep(600)
        connection.send(Replayed(kept.name, Outcome.PASSED, str(os.getpid())))


def does_not_start(_connection: Connection, _device: str, _reverts: object) -> None:
    """Raise before anything is replayed."""
    raise ImportError("no subjects here")
