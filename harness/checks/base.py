"""What checks share: the run that they judge, and findings with their buckets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.case import AnyLayer, Case, describe, walk

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.subjects.base import Observation


@dataclass(frozen=True, slots=True)
class Run:
    """One case after it ran: the subject under test, the reference, and how their tensors may differ."""

    case: Case
    subject: Observation
    reference: Observation
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Bucket:
    """What makes two findings the same bug. No part depends on sizes or positions, so shrinking can keep the bucket."""

    check: str
    stage: str
    where: str
    subject: str
    recipe: str

    def __str__(self) -> str:
        return "/".join((self.check, self.stage, self.where, self.subject, self.recipe)).replace(" ", "-")

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that stand for the bucket in file names and on the command line."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a report points at: it changes neither message nor bucket."""

    layers: tuple[str, ...] = ()
    """Paths of the layers that the finding is about."""
    names: tuple[str, ...] = ()
    """Names and symbols of the traces that the finding is about."""
    traces: tuple[tuple[str, Any], ...] = ()
    """The traces in which it was seen (Thunder's ``TraceCtx``), each with a caption."""
    step: int | None = None
    """The step that compiled these traces."""


class Finding(AssertionError):
    """One violated property of one case. Subclasses are the kinds of findings."""

    check: ClassVar[str]
    promise: ClassVar[str] = "The property that this check asserts holds."
    """What a report gives as expected."""

    def __init__(self, run: Run, message: str, *, stage: str, where: str, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence or Evidence()
        self.case = run.case
        recipe = run.case.precision.recipe
        self.bucket = Bucket(
            check=self.check,
            stage=stage,
            where=where,
            subject=run.subject.subject,
            recipe="none" if recipe is None else type(recipe).__name__,
        )

    def __str__(self) -> str:
        case = self.case
        return (
            f"{self.message}\n"
            f"  bucket: {self.bucket}\n"
            f"  model:  {describe(case.layers, case.input.features)}\n"
            f"  case:   {case.id} (input {[*case.input.batch, case.input.features]} {case.input.dtype}, "
            f"{len(case.steps)} steps)"
        )


def layer_at(case: Case, path: str) -> AnyLayer:
    """The layer at a dotted path."""
    return dict(walk(case.layers))[path]


def kind_at(case: Case, path: str) -> str:
    """The kind of the layer at a path, for a bucket: independent of where the layer stands."""
    return type(layer_at(case, path)).__name__
