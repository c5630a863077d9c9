"""Outputs are equal in every step, and require grad alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.checks.base import Finding, Run


class OutputDiffers(Finding):
    """An output is not what the reference gives."""

    check: ClassVar[str] = "output"
    promise: ClassVar[str] = "The outputs are those of the reference."


class OutputRequiresGrad(Finding):
    """An output requires grad on one side only."""

    check: ClassVar[str] = "output requires grad"
    promise: ClassVar[str] = "The output requires grad where that of the reference does."


class StepMissing(Finding):
    """One side gave fewer steps without an exception that explains it."""

    check: ClassVar[str] = "step missing"
    promise: ClassVar[str] = "Both sides run all steps."


def check(run: Run) -> Iterator[Finding]:
    """A finding for the first step that differs."""
    for index, (ours, theirs) in enumerate(zip(run.subject.steps, run.reference.steps, strict=False)):
        mode = run.case.steps[index].mode
        if ours.output_requires_grad != theirs.output_requires_grad:
            yield OutputRequiresGrad(
                run,
                f"step {index}: the output requires grad: {ours.output_requires_grad}, in the reference: "
                f"{theirs.output_requires_grad}",
                stage=mode,
                where="output",
            )
            return
        if ours.output is None or theirs.output is None:
            continue
        difference = run.comparison.difference(f"{index} output", ours.output, theirs.output)
        if difference is not None:
            yield OutputDiffers(run, f"step {index}, output: {difference}", stage=mode, where="output")
            return
    raised = run.subject.failure or run.reference.failure
    if raised is None and len(run.subject.steps) != len(run.reference.steps):
        counts = f"{len(run.subject.steps)} steps against {len(run.reference.steps)}"
        yield StepMissing(run, counts, stage="schedule", where="steps")
