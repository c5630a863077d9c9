"""One file per property. ``CHECKS`` lists them, strongest and cheapest first: the first finding names the bucket.

To add a check, write a module with a ``Finding`` subclass and a function ``check(run) -> Iterator[Finding]`` and add
it to the list. Every kind of finding is a class of its own, since Hypothesis tells failures apart by class and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.checks import (
    claims,
    compilations,
    definitions,
    exceptions,
    fp8_state,
    fp8_update,
    gradients,
    graph_splits,
    inputs,
    names,
    outputs,
    random_operations,
    recomputation,
    saved_for_backward,
    stateful_symbols,
    thunder_check,
)
from harness.checks.base import Finding, Run

Check = Callable[[Run], Iterator[Finding]]

TRACE_CHECKS: tuple[Check, ...] = (
    stateful_symbols.check,
    names.check,
    stateful_symbols.check_recomputation,
    random_operations.check,
    definitions.check,
    saved_for_backward.check,
    claims.check,
    recomputation.check,
    thunder_check.check,
)
"""Those that look at the compiled traces alone: no reference is needed, and a fault shows before numbers go wrong."""

VALUE_CHECKS: tuple[Check, ...] = (
    graph_splits.check,
    compilations.check,
    inputs.check,
    fp8_state.check,
    outputs.check,
    gradients.check,
    fp8_update.check,
)

CHECKS: tuple[Check, ...] = (*TRACE_CHECKS, exceptions.check, *VALUE_CHECKS)
CHECKS_BUT_TRACES: tuple[Check, ...] = (exceptions.check, *VALUE_CHECKS)


def findings_of(run: Run, checks: tuple[Check, ...] = CHECKS) -> tuple[Finding, ...]:
    """All findings of ``checks``, in their order; of ``TRACE_CHECKS`` also where no reference has run."""
    return tuple(finding for check in checks for finding in check(run))
