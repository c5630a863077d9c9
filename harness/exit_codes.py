"""The exit codes of everything that runs cases."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all subcommands, and of `pytest fuzz/` when it replays."""

    CLEAN = 0
    FINDINGS = 1
    BAD_INPUT = 2
    OWN_ERROR = 3
    DRIFTED = 4
    INTERRUPTED = 130
