"""What checks share: the run that they judge, and findings with their buckets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.bucket import Bucket, finding_text, recipe_name
from harness.case import AnyLayer, Case, walk

__all__ = ["Bucket", "Evidence", "Finding", "Run", "kind_at", "layer_at"]

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


FRAME = re.compile(r'File "(?:.*/site-packages/|.*/)?([^"]+)", line (\d+), in (\S+)')
"""A frame of a traceback; the path is that below site-packages."""


def place(evidence: Evidence, case: Case, message: str) -> str:
    """Where a report points at, on one line."""
    layers = dict(walk(case.layers))
    parts = [f"layer {path} ({type(layers[path]).__name__})" for path in evidence.layers if path in layers]
    parts += [f"{name} in the {caption}" for name in evidence.names for caption, _ in evidence.traces]
    if frames := FRAME.findall(message):
        file, line, function = frames[-1]
        parts.append(f"{file}, line {line}, in {function}")
    return "; ".join(parts)


class Finding(AssertionError):
    """One violated property of one case. Subclasses are the kinds of findings."""

    check: ClassVar[str]
    promise: ClassVar[str] = "The property that this check asserts holds."
    """What a report gives as expected."""
    essence: str | None = None
    """A few lines for the terminal, where a fuzz run made them."""

    @property
    def place(self) -> str:
        """The layers, names of traces and the line of code that it is about; empty where it names none."""
        return place(self.evidence, self.case, self.message)

    def __init__(self, run: Run, message: str, *, stage: str, where: str, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence or Evidence()
        self.case = run.case
        self.bucket = Bucket(
            check=self.check,
            stage=stage,
            where=where,
            subject=run.subject.subject,
            recipe=recipe_name(run.case),
        )

    def __str__(self) -> str:
        return finding_text(self.message, self.bucket, self.case)


def layer_at(case: Case, path: str) -> AnyLayer:
    """The layer at a dotted path."""
    return dict(walk(case.layers))[path]


def kind_at(case: Case, path: str) -> str:
    """The kind of the layer at a path, for a bucket: independent of where the layer stands."""
    return type(layer_at(case, path)).__name__
