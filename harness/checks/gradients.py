"""Gradients of the input and of every parameter are equal in every step; None on one side only is a finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from harness.checks.base import Evidence, Finding, Run, kind_at
from harness.compare import gradient_key


class GradientDiffers(Finding):
    """A gradient is not what the reference gives."""

    check: ClassVar[str] = "gradient"
    promise: ClassVar[str] = "The gradients are those of the reference."


class GradientMissing(Finding):
    """A gradient is None on one side only."""

    check: ClassVar[str] = "gradient missing"
    promise: ClassVar[str] = "Both sides give a gradient, or none does."


def check(run: Run) -> Iterator[Finding]:
    """All gradients that differ in the first step that has any."""
    for index, (ours, theirs) in enumerate(zip(run.subject.steps, run.reference.steps, strict=False)):
        pairs: dict[str, tuple[Tensor | None, Tensor | None]] = {"input": (ours.input_gradient, theirs.input_gradient)}
        for name in theirs.parameter_gradients:
            pairs[name] = (ours.parameter_gradients.get(name), theirs.parameter_gradients[name])
        findings = [
            finding
            for name, (our_gradient, their_gradient) in pairs.items()
            for finding in _compare(run, index, name, our_gradient, their_gradient)
        ]
        if findings:
            yield from findings
            return


def _compare(run: Run, index: int, name: str, ours: Tensor | None, theirs: Tensor | None) -> Iterator[Finding]:
    if ours is None and theirs is None:
        return
    place = f"step {index}, gradient of {name}"
    if ours is None or theirs is None:
        side = run.subject.subject if ours is None else run.reference.subject
        yield GradientMissing(
            run, f"{place}: None in {side} only", stage="backward", where=_kind(run, name), evidence=_evidence(name)
        )
        return
    difference = run.comparison.difference(gradient_key(index, name), ours, theirs)
    if difference is not None:
        yield GradientDiffers(
            run, f"{place}: {difference}", stage="backward", where=_kind(run, name), evidence=_evidence(name)
        )


def _evidence(name: str) -> Evidence:
    path, _, _ = name.rpartition(".")
    return Evidence(layers=(path,) if path else ())


def _kind(run: Run, name: str) -> str:
    """``0.weight`` -> ``Linear.weight``: independent of the layer's position."""
    if name == "input":
        return "input"
    path, _, leaf = name.rpartition(".")
    return f"{kind_at(run.case, path)}.{leaf}"
