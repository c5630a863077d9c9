"""Every name has one producer: within a trace, and across the forward and the backward trace.

Every pass that looks names up in a map trusts this. Values that the backward recomputes must get new names; only what
it unpacks from ``saved_for_backward`` keeps the forward's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from thunder.core.trace import TraceTag

from harness.checks.base import Finding, Run
from harness.traces import computed_names


class NameComputedTwice(Finding):
    """One trace computes a name twice."""

    check: ClassVar[str] = "name computed twice"


class NameInBothTraces(Finding):
    """The backward trace computes a name that the forward trace has too."""

    check: ClassVar[str] = "name in forward and backward"


def check(run: Run) -> Iterator[Finding]:
    """The first violation of each kind in each compiled specialisation; all of Thunder's traces are inspected."""
    for compilation in run.subject.compilations:
        yield from _twice(run, compilation.forward, "forward")
        yield from _twice(run, compilation.backward, "backward")
        yield from _overlap(run, compilation.forward, compilation.backward)


def _twice(run: Run, traces: tuple[Any, ...], label: str) -> Iterator[Finding]:
    for trace in traces:
        producers: dict[str, str] = {}
        for bsym in trace.bound_symbols:
            for name in computed_names(bsym):
                if name in producers:
                    yield NameComputedTwice(
                        run,
                        f"{name} is computed by {producers[name]} and again by {bsym.sym.name} in the {label} trace "
                        f"after: {_pass(trace)}",
                        stage=label,
                        where=_pass(trace),
                    )
                    return
                producers[name] = bsym.sym.name


def _overlap(run: Run, forward: tuple[Any, ...], backward: tuple[Any, ...]) -> Iterator[Finding]:
    # Only traces of one stage may be compared. A transform that merges equal calls across both passes hides an overlap
    # from the last traces, and may break on it: so the first ones after the split are compared too.
    split = next((trace for trace in forward if TraceTag.AUGMENTED_FORWARD in trace.tags), None)
    if split is None or not backward:
        return
    for stage, ours, theirs in (("split", split, backward[0]), ("final", forward[-1], backward[-1])):
        for finding in _common_names(run, stage, ours, theirs):
            yield finding
            return


def _common_names(run: Run, stage: str, forward: Any, backward: Any) -> Iterator[Finding]:
    known: dict[str, str] = {}
    for bsym in forward.bound_symbols:
        for proxy in bsym.flat_proxy_outs:
            known.setdefault(proxy.name, bsym.sym.name)
    for bsym in backward.bound_symbols:
        for name in computed_names(bsym):
            if name in known:
                yield NameInBothTraces(
                    run,
                    f"the backward trace computes {name} ({bsym.sym.name}); the forward trace has that name from "
                    f"{known[name]}",
                    stage=stage,
                    where="overlap",
                )


def _pass(trace: Any) -> str:
    """The name of the pass that made a trace, without its time."""
    provenance = trace.get_provenance()
    return "acquisition" if provenance is None else provenance.pss.split(" (took")[0]
