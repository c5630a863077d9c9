"""One file per property. ``CHECKS`` lists them, strongest and cheapest first: the first finding names the bucket.

To add a check, write a module with a ``Finding`` subclass and a function ``check(run) -> Iterator[Finding]`` and add
it to the list. Every kind of finding is a class of its own, since Hypothesis tells failures apart by class and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.checks import (
    claims,
    definitions,
    exceptions,
    fp8_state,
    gradients,
    inputs,
    names,
    outputs,
    stateful_symbols,
)
from harness.checks.base import Finding, Run

CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    exceptions.check,
    stateful_symbols.check,
    names.check,
    stateful_symbols.check_recomputation,
    definitions.check,
    claims.check,
    inputs.check,
    fp8_state.check,
    outputs.check,
    gradients.check,
)


def findings_of(run: Run) -> list[Finding]:
    """All findings of all checks, in the order of ``CHECKS``."""
    return [finding for check in CHECKS for finding in check(run)]
