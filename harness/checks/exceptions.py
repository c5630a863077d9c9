"""Both sides finish, or both refuse the case with the same exception at the same stage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from harness.checks.base import Finding, Run
from harness.subjects.base import SubjectFailure


class SubjectRaised(Finding):
    """The subject under test raised and the reference did not."""

    check: ClassVar[str] = "exception"
    promise: ClassVar[str] = "No exception: the reference runs the same model without one."


class ReferenceRaised(Finding):
    """The eager reference raised and the subject under test did not."""

    check: ClassVar[str] = "reference exception"
    promise: ClassVar[str] = "No exception: the JIT runs the same model without one."


class ExceptionsDiffer(Finding):
    """Both raised, but not the same."""

    check: ClassVar[str] = "different exceptions"
    promise: ClassVar[str] = "Both sides run, or both refuse the model for the same reason."


def check(run: Run) -> Iterator[Finding]:
    """A finding when exactly one side raised, or when both raised differently."""
    ours, theirs = run.subject.failure, run.reference.failure
    if ours is not None and theirs is None:
        yield SubjectRaised(
            run, f"{run.subject.subject} raised in {ours.stage}, {run.reference.subject} did not:\n{ours.stack}",
            stage=stage_kind(ours), where=normalised(ours.error),
        )  # fmt: skip
    elif ours is None and theirs is not None:
        yield ReferenceRaised(
            run, f"{run.reference.subject} raised in {theirs.stage}, {run.subject.subject} did not:\n{theirs.stack}",
            stage=stage_kind(theirs), where=normalised(theirs.error),
        )  # fmt: skip
    elif ours is not None and theirs is not None and not same_refusal(ours, theirs):
        yield ExceptionsDiffer(
            run,
            f"{run.subject.subject} raised in {ours.stage}:\n{ours.stack}\n"
            f"{run.reference.subject} raised in {theirs.stage}:\n{theirs.stack}",
            stage=stage_kind(ours), where=normalised(ours.error),
        )  # fmt: skip


def same_refusal(ours: SubjectFailure, theirs: SubjectFailure) -> bool:
    """Whether both sides refused the case alike: same stage, class and message."""
    return ours.stage == theirs.stage and normalised(ours.error) == normalised(theirs.error)


def stage_kind(failure: SubjectFailure) -> str:
    """``forward of step 2`` -> ``forward``."""
    return failure.stage.split(" ", 1)[0]


def normalised(error: Exception) -> str:
    """Class and first line of the message, without numbers, shapes, addresses and names of proxies."""
    return normalised_text(type(error).__name__, str(error))


def normalised_text(kind: str, message: str) -> str:
    """``normalised`` for an exception of which only the words are there."""
    kind, message = _without_torch_script(kind, message)
    first = message.strip().split("\n", 1)[0]
    first = re.sub(r"0x[0-9a-f]+|\b[a-z]{1,2}\d+\b|\d+", "#", first)
    first = re.sub(r"#(, #)+", "#", first)
    if len(first) > 120:  # at the end of a word: half of a name looks like another one
        first = first[:121].rpartition(" ")[0] or first[:120]
    return f"{kind}: {first}"


def _without_torch_script(kind: str, message: str) -> tuple[str, str]:
    """The exception that ended a TorchScript function: the last words of what its interpreter makes of it.

    TE scripts the update of amax histories, which Thunder calls directly and eager TE from a function that may raise
    the same outside of TorchScript (``_amax_and_scale_update`` in transformer_engine/pytorch/quantization.py).
    """
    if not message.startswith("The following operation failed in the TorchScript interpreter"):
        return kind, message
    inner = re.findall(r"^(\w*(?:Error|Exception)): (.+)", message, re.MULTILINE)
    return inner[-1] if inner else (kind, message)
