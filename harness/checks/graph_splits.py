"""ThunderFX compiles the whole model, rather than leave parts of it to Inductor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.checks.base import Finding, Run


class GraphSplit(Finding):
    """ThunderFX takes an operation that Thunder has for one that it has not."""

    check: ClassVar[str] = "graph split"
    promise: ClassVar[str] = "ThunderFX compiles every operation that Thunder has, and leaves none to Inductor."


def check(run: Run) -> Iterator[Finding]:
    """A finding for the first operation that the splitter gave away. Its numbers are Inductor's, and it has no FP8."""
    for operation, reason in run.subject.left_to_inductor:
        yield GraphSplit(
            run, f"{operation} is left to Inductor: {reason}", stage="compilation", where=operation.split(" ")[0]
        )
        return
