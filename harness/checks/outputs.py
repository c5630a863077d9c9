"""Outputs are equal in every step, and require grad alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.checks.base import Finding, Run
from harness.compare import output_key, output_name


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
        if ours.outputs_require_grad != theirs.outputs_require_grad:
            yield OutputRequiresGrad(
                run,
                f"step {index}: the outputs require grad: {ours.outputs_require_grad}, in the reference: "
                f"{theirs.outputs_require_grad}",
                stage=mode,
                where="output",
            )
            return
        for number, (our_output, their_output) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
            difference = run.comparison.difference(output_key(index, number), our_output, their_output)
            if difference is not None:
                name = output_name(number)
                yield OutputDiffers(run, f"step {index}, {name}: {difference}", stage=mode, where=name.split(" #")[0])
                return
    raised = run.subject.failure or run.reference.failure
    if raised is None and len(run.subject.steps) != len(run.reference.steps):
        counts = f"{len(run.subject.steps)} steps against {len(run.reference.steps)}"
        yield StepMissing(run, counts, stage="schedule", where="steps")
