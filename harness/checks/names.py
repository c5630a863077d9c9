"""Every name has one producer: within a trace, and across the forward and the backward trace.

Every pass that looks names up in a map trusts this. Values that the backward recomputes must get new names; only what
it unpacks from ``saved_for_backward`` keeps the forward's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from thunder.core.trace import TraceTag

from harness.case import Checkpoint, walk
from harness.checks.base import Evidence, Finding, Run
from harness.subjects.base import Compilation
from harness.traces import computed_names, distinct, pass_name


class NameComputedTwice(Finding):
    """One trace computes a name twice."""

    check: ClassVar[str] = "name computed twice"
    promise: ClassVar[str] = "Every name has one producer in a trace."


class NameInBothTraces(Finding):
    """The backward trace computes a name that the forward trace has too."""

    check: ClassVar[str] = "name in forward and backward"
    promise: ClassVar[str] = "Values that backward computes again have names of their own."


def check(run: Run) -> Iterator[Finding]:
    """The first violation of each kind in each compiled specialisation; all of Thunder's traces are inspected."""
    for compilation in run.subject.compilations:
        yield from _twice(run, compilation.step, compilation.forward, "forward")
        yield from _twice(run, compilation.step, compilation.backward, "backward")
        yield from _overlap(run, compilation)


def _twice(run: Run, step: int, traces: tuple[Any, ...], label: str) -> Iterator[Finding]:
    for trace in distinct(traces):
        producers: dict[str, str] = {}
        for bsym in trace.bound_symbols:
            for name in computed_names(bsym):
                if name in producers:
                    yield NameComputedTwice(
                        run,
                        f"{name} is computed by {producers[name]} and again by {bsym.sym.name} in the {label} trace "
                        f"after the pass {pass_name(trace)!r}",
                        stage=label,
                        where=pass_name(trace),
                        evidence=Evidence(_recomputed_layers(run), (name,), ((f"{label} trace", trace),), step),
                    )
                    return
                producers[name] = bsym.sym.name


def _overlap(run: Run, compilation: Compilation) -> Iterator[Finding]:
    forward, backward = compilation.forward, compilation.backward
    # Only traces of one stage may be compared. A transform that merges equal calls across both passes hides an overlap
    # from the last traces, and may break on it: so the first ones after the split are compared too.
    split = next((trace for trace in forward if TraceTag.AUGMENTED_FORWARD in trace.tags), None)
    if split is None or not backward:
        return
    for stage, ours, theirs in (("split", split, backward[0]), ("final", forward[-1], backward[-1])):
        for finding in _common_names(run, compilation.step, stage, ours, theirs):
            yield finding
            return


def _common_names(run: Run, step: int, stage: str, forward: Any, backward: Any) -> Iterator[Finding]:
    known: dict[str, str] = {}
    for bsym in forward.bound_symbols:
        for proxy in bsym.flat_proxy_outs:
            known.setdefault(proxy.name, bsym.sym.name)
    for bsym in backward.bound_symbols:
        for name in computed_names(bsym):
            if name in known:
                yield NameInBothTraces(
                    run,
                    f"after the pass {pass_name(backward)!r} the backward trace computes {name} ({bsym.sym.name}); the "
                    f"forward trace has that name from {known[name]}",
                    stage=stage,
                    where="overlap",
                    evidence=Evidence(
                        _recomputed_layers(run),
                        (name,),
                        ((f"forward trace ({stage})", forward), (f"backward trace ({stage})", backward)),
                        step,
                    ),
                )


def _recomputed_layers(run: Run) -> tuple[str, ...]:
    """The regions whose values backward computes again: where names can meet."""
    return tuple(path for path, layer in walk(run.case.layers) if isinstance(layer, Checkpoint))
