"""The caller's own tensors are left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.checks.base import Finding, Run


class InputChanged(Finding):
    """A step wrote into its input."""

    check: ClassVar[str] = "input changed"
    promise: ClassVar[str] = "A step leaves the values of its input as they are."


def check(run: Run) -> Iterator[Finding]:
    """A finding for the first step that changed its input."""
    for index, step in enumerate(run.subject.steps):
        if not step.input_unchanged:
            yield InputChanged(
                run, f"step {index} changed the values of its input", stage=run.case.steps[index].mode, where="input"
            )
            return
