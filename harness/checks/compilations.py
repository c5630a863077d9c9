"""Nothing is compiled twice: a step that a compiled specialisation fits finds it in the cache.

A cache that misses gives right numbers without TE; each step then costs a compilation, and what is kept grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.build import step_batch, trainable_parameters
from harness.checks.base import Evidence, Finding, Run
from harness.sample import has_one_precision


class CompiledAgain(Finding):
    """A step compiles what an earlier step has compiled."""

    check: ClassVar[str] = "compiled again"
    promise: ClassVar[str] = "A step of the shape and mode of an earlier one runs what that one compiled."


def check(run: Run) -> Iterator[Finding]:
    """The first step that compiles although an earlier one has its shape and mode."""
    case = run.case
    if case.jit is None or case.jit.cache == "no caching" or not has_one_precision(case):
        return
    first: dict[object, int] = {}
    for compilation in run.subject.compilations:
        index = compilation.step
        step = case.steps[index]
        needed = step_batch(case, index), step.mode, frozenset(trainable_parameters(case, index))
        earlier = first.setdefault(needed, index)
        if earlier != index:
            yield CompiledAgain(
                run,
                f"step {compilation.step} is compiled, although step {earlier} has its shape and mode",
                stage=step.mode,
                where="cache",
                evidence=Evidence(traces=(("forward trace", compilation.forward[-1]),), step=compilation.step),
            )
            return
