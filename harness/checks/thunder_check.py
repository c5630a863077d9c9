"""Thunder's own ``check_trace`` accepts every trace that Thunder keeps.

It demands one object for each name, in composite symbols too, and calls the meta function of every bound symbol again:
shapes that a pass got wrong show here, before a kernel is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_map
from thunder.core.trace import from_trace
from thunder.dev_utils.check_trace import check_trace

from harness.case import Autocast, Case, walk
from harness.checks.base import Evidence, Finding, Run
from harness.sample import in_sample
from harness.subjects.base import Compilation
from harness.traces import distinct, pass_name

ONE_CASE_IN = 4
BEFORE_COLLECTIONS = 2
"""The last version of ``check_trace`` that does not look into the collections that are unpacked."""


class TraceRefused(Finding):
    """Thunder's own check refuses a trace."""

    check: ClassVar[str] = "check_trace"
    promise: ClassVar[str] = "Thunder's own `check_trace` accepts every trace."


def check(run: Run) -> Iterator[Finding]:
    """The first trace of each compiled specialisation that is refused, in a sample of cases: it costs a sixth more.

    Not where a part of the model enters ``torch.autocast``: the meta functions of its symbols work only while Thunder
    compiles.
    """
    if not in_sample(run.case, ONE_CASE_IN) or any(isinstance(layer, Autocast) for _, layer in walk(run.case.layers)):
        return
    for compilation in run.subject.compilations:
        yield from islice(_refused(run, compilation), 1)


def _refused(run: Run, compilation: Compilation) -> Iterator[Finding]:
    for label, traces in (("forward", compilation.forward), ("backward", compilation.backward)):
        for trace in distinct(traces):
            if (error := _refusal(run.case, label, trace)) is None:
                continue
            made_by = pass_name(trace)
            yield TraceRefused(
                run,
                f"check_trace refuses the {label} trace after the pass {made_by!r}: {error}",
                stage=label,
                where=made_by,
                evidence=Evidence(traces=((f"{label} trace", trace),), step=compilation.step),
            )


def _refusal(case: Case, label: str, trace: Any) -> Exception | None:
    assert case.jit is not None
    try:
        if case.jit.executor == "transformer_engine" and label == "backward":
            check_trace(one_proxy_for_each_name(trace), version=BEFORE_COLLECTIONS)
        else:
            check_trace(trace)
    # A meta function may raise anything that it raises when it is first called.
    except Exception as error:  # noqa: BLE001
        return error
    return None


def one_proxy_for_each_name(trace: Any) -> Any:
    """The trace with one object for all proxies of one name.

    Executor v2 makes new objects for the same names when it rewrites a backward trace, and changes the collection that
    an earlier trace unpacks, so ``check_trace`` refuses all its backward traces (docs/findings.md, "v2-check-traces").
    Nothing is computed wrongly for it, so the rest of the check is of use.
    """
    known: dict[str, Any] = {}

    def one(value: Any) -> Any:
        return known.setdefault(value.name, value) if isinstance(value, Proxy) else value

    def rewritten(bsym: Any) -> Any:
        return bsym.from_bsym(
            args=tree_map(one, bsym.args),
            kwargs=tree_map(one, bsym.kwargs),
            output=tree_map(one, bsym.output),
            subsymbols=[rewritten(inner) for inner in bsym.subsymbols],
        )

    result = from_trace(trace)
    result.bound_symbols = [rewritten(bsym) for bsym in trace.bound_symbols]
    return result
