"""The command that runs a kept case again, as terminals, CI and reports print it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path


def revert_options(reverts: Iterable[str]) -> str:
    """What a command of ``tefuzz`` has to be told to see what was found with these fixes undone."""
    return "".join(f" --revert {name}" for name in reverts)


def run_command(path: Path, options: str = "") -> str:
    """``tefuzz run`` of a case file, ready to be pasted into a shell; ``options`` as ``revert_options`` gives them."""
    return f"tefuzz run {shlex.quote(str(path))}{options}"
