"""FP8 state is equal after every step: amax history and scale, tensor by tensor.

Shared or stale state hides inside FP8 noise in the outputs; here it is plain. Delayed-scaling state depends on
nothing but the values that were quantised, so it is compared like them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from harness.case import Case, DelayedScaling
from harness.checks.base import Evidence, Finding, Run
from harness.precision import recipe_of
from harness.subjects.base import QuantizerState


class ScaleDiffers(Finding):
    """A scale is not the reference's."""

    check: ClassVar[str] = "fp8 scale"
    promise: ClassVar[str] = "After every step the FP8 scales are those of eager TE."


class AmaxHistoryDiffers(Finding):
    """An amax history is not the reference's."""

    check: ClassVar[str] = "fp8 amax history"
    promise: ClassVar[str] = "After every step the amax histories are those of eager TE."


class StateMissing(Finding):
    """One side has FP8 state that was used, the other has none."""

    check: ClassVar[str] = "fp8 state missing"
    promise: ClassVar[str] = "Both sides keep FP8 state for the tensors that they quantise."


def check(run: Run) -> Iterator[Finding]:
    """The differences of the first step that has any."""
    for index, (ours, theirs) in enumerate(zip(run.subject.steps, run.reference.steps, strict=False)):
        findings = [
            finding
            for path in theirs.fp8_state
            if path in ours.fp8_state
            for tensor in _compared_tensors(run.case, index)
            for finding in _compare(
                run, index, path, tensor, ours.fp8_state[path].get(tensor), theirs.fp8_state[path].get(tensor)
            )
        ]
        if findings:
            yield from findings
            return


def _compared_tensors(case: Case, index: int) -> tuple[str, ...]:
    """What has state after a step.

    Under a recipe without any, eager TE drops delayed-scaling state in forward, Thunder that of gradients in backward.
    """
    step = case.steps[index]
    ran_backward = not step.deferred and step.backward != "never"
    if ran_backward or isinstance(recipe_of(case, index), DelayedScaling):
        return ("input", "weight", "grad_output")
    return ("input", "weight")


def _compare(
    run: Run, index: int, path: str, tensor: str, ours: QuantizerState | None, theirs: QuantizerState | None
) -> Iterator[Finding]:
    place = f"step {index}, linear {path}, {tensor}"
    mode = run.case.steps[index].mode
    evidence = Evidence(layers=(path,))
    if ours is None or theirs is None:
        present = ours or theirs
        # A side that never quantised a tensor may have no state for it: the other's must then be as when created.
        if present is not None and not _untouched(present):
            side = run.subject.subject if ours is None else run.reference.subject
            yield StateMissing(run, f"{place}: {side} has no FP8 state", stage=mode, where=tensor, evidence=evidence)
        return
    amax = run.comparison.difference(f"{index} amax {path} {tensor}", ours.amax_history, theirs.amax_history)
    if amax is not None:
        yield AmaxHistoryDiffers(run, f"{place}: amax history: {amax}", stage=mode, where=tensor, evidence=evidence)
    scale = run.comparison.difference(f"{index} scale {path} {tensor}", ours.scale, theirs.scale)
    if scale is not None:
        yield ScaleDiffers(run, f"{place}: scale: {scale}", stage=mode, where=tensor, evidence=evidence)


def _untouched(state: QuantizerState) -> bool:
    return bool(torch.all(state.amax_history == 0)) and bool(state.scale == 1)
