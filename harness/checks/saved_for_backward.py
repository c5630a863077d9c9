"""What forward saves for backward is what backward unpacks: the same names in the same order, each tensor of use.

Two traces agree by position only. A pass that rewrites one of them and forgets the other gives backward a tensor under
the name of another; where shapes fit, the gradients are wrong and nothing else is. What is saved and not used costs
memory from forward to backward, and no number shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.trace import TraceTag

from harness.checks.base import Evidence, Finding, Run
from harness.subjects.base import Compilation
from harness.traces import is_unpacking, pass_name

TENSORS, OTHERS = "C0", "C1"
"""Names of the two collections in the backward trace (``split_into_forward_and_backward``)."""


class SavedForBackwardDiffers(Finding):
    """Backward unpacks other names than forward saves."""

    check: ClassVar[str] = "saved for backward"
    promise: ClassVar[str] = "Backward unpacks what forward saves, in the same order."


class SavedNeedlessly(Finding):
    """Forward saves a tensor that backward does not use."""

    check: ClassVar[str] = "saved needlessly"
    promise: ClassVar[str] = "Forward saves the tensors that backward uses, and no others."


def check(run: Run) -> Iterator[Finding]:
    """The first stage of each compiled specialisation after which its two traces disagree."""
    for compilation in run.subject.compilations:
        for forward, backward in _pairs(compilation):
            if (finding := _check(run, compilation.step, forward, backward)) is not None:
                yield finding
                break


def _pairs(compilation: Compilation) -> Iterator[tuple[Any, Any]]:
    """Forward and backward traces of one stage: after the split, and after all passes."""
    split = next((trace for trace in compilation.forward if TraceTag.AUGMENTED_FORWARD in trace.tags), None)
    if split is None or not compilation.backward:
        return
    yield split, compilation.backward[0]
    if len(compilation.backward) > 1:
        yield compilation.forward[-1], compilation.backward[-1]


def _check(run: Run, step: int, forward: Any, backward: Any) -> Finding | None:
    made_by = pass_name(backward)
    _, saved = forward.output
    traces = (("forward trace", forward), ("backward trace", backward))
    used = _used(backward)
    for collection, kept in zip((TENSORS, OTHERS), saved, strict=True):
        names = [proxy.name for proxy in kept]
        unpacked = _unpacked(backward, collection)
        if not _agree(names, unpacked):
            message = f"forward saves {_listed(names)}; backward unpacks {_listed(unpacked)} (pass {made_by!r})"
            evidence = Evidence(names=tuple(names), traces=traces, step=step)
            return SavedForBackwardDiffers(run, message, stage=made_by, where=collection, evidence=evidence)
        # v2 always saves its recipe, a Python object: no memory to speak of.
        if collection == TENSORS and (needless := [name for name in names if name not in used]):
            message = f"forward saves {_listed(needless)}, which backward does not use (pass {made_by!r})"
            evidence = Evidence(names=tuple(needless), traces=traces, step=step)
            return SavedNeedlessly(run, message, stage=made_by, where=collection, evidence=evidence)
    return None


def _unpacked(backward: Any, collection: str) -> list[str | None]:
    for bsym in backward.bound_symbols:
        if bsym.sym.id == prims.PrimIDs.UNPACK_SEQUENCE and bsym.args[0].name == collection:
            return [None if proxy is None else proxy.name for proxy in bsym.output]
    return []


def _agree(saved: list[str], unpacked: list[str | None]) -> bool:
    """Whether the names are the same; what nothing uses may be unpacked to None."""
    return len(saved) == len(unpacked) and all(
        there in (None, here) for here, there in zip(saved, unpacked, strict=True)
    )


def _used(backward: Any) -> set[str]:
    return {
        proxy.name
        for bsym in backward.bound_symbols
        if not is_unpacking(bsym) and bsym.sym.id != prims.PrimIDs.DEL
        for proxy in bsym.flat_proxy_args
    }


def _listed(names: Sequence[str | None]) -> str:
    return ", ".join(map(str, names)) or "nothing"
