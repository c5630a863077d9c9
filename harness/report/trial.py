"""A report's program is run before the report is written: does it show the bug?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.checks.base import Finding
from harness.checks.exceptions import normalised_text

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a program, in a process of its own."""

    status: int | None
    """The exit status; None when it did not end in time."""
    output: str
    complaint: str | None
    """Why the program does not show the bug; None when it does."""


def run_program(program: Path, finding: Finding) -> Trial:
    """Run ``program`` in an empty directory, and say whether it shows ``finding``."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                [sys.executable, program.absolute()],
                cwd=directory, env={**os.environ, "PYTHONWARNINGS": "ignore"}, capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Trial(None, "", f"it did not end within {TIMEOUT_S:.0f} s")
    output = done.stdout + (f"\n{done.stderr}" if done.returncode not in (0, 1) or _broke(done.stderr) else "")
    return Trial(done.returncode, output.strip(), _complaint(done.returncode, done.stdout, done.stderr, finding))


def _broke(errors: str) -> bool:
    return "Traceback (most recent call last)" in errors


def _complaint(status: int, output: str, errors: str, finding: Finding) -> str | None:
    if status == 0:
        return "it ends with status 0"
    if _broke(errors):
        return f"it ends with an exception of its own ({errors.strip().splitlines()[-1]})"
    if status != 1:
        return f"it ends with status {status}"
    if finding.check in ("exception", "reference exception") and not _same_exception(output, finding):
        return "it raises another exception"
    return None


def _same_exception(output: str, finding: Finding) -> bool:
    """Whether the exception that the program printed is that of the bucket, but for numbers and names."""
    seen = output.partition("seen: ")[2].split("\n", 1)[0]
    kind, _, message = seen.partition(": ")
    return normalised_text(kind, message) == finding.bucket.where
