"""Random operations are neither merged, dropped nor doubled by a pass.

Two calls of ``uniform`` look like one common subexpression, and one that a pass repeats for the backward of a
checkpointed region draws other numbers than forward did. The numbers stay plausible; the traces show it at once, with
the pass that did it. (The trace that holds forward and backward together counts both.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from thunder.core import prims

from harness.checks.base import Evidence, Finding, Run
from harness.traces import distinct, pass_name


class RandomOperationsCounted(Finding):
    """A trace draws more or fewer times than the one before it."""

    check: ClassVar[str] = "random operations"
    promise: ClassVar[str] = "No pass drops, merges or repeats a random operation."


def check(run: Run) -> Iterator[Finding]:
    """The first violation in each compiled specialisation."""
    for compilation in run.subject.compilations:
        if not compilation.forward:
            continue
        expected = random_operations(compilation.forward[0])
        for trace in distinct(compilation.forward[1:]):
            if (seen := random_operations(trace)) != expected:
                made_by = pass_name(trace)
                yield RandomOperationsCounted(
                    run,
                    f"{seen} random operations after the pass {made_by!r}, {expected} before it",
                    stage=made_by,
                    where="fewer" if seen < expected else "more",
                    evidence=Evidence(traces=((f"trace after {made_by}", trace),), step=compilation.step),
                )
                break


def random_operations(trace: Any) -> int:
    """How many times a trace draws random numbers, inside composite symbols too."""
    return sum(map(_draws, trace.bound_symbols))


def _draws(bsym: Any) -> int:
    # The torch executor's own out-of-place operation (thunder/executors/torchex.py) has the primitive's name.
    if bsym.sym.id is prims.PrimIDs.UNIFORM or bsym.sym.name == "uniform":
        return 1
    return sum(map(_draws, bsym.subsymbols))
