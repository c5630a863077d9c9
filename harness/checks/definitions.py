"""Nothing is used before it is defined or after it is deleted, in any trace that Thunder keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_iter

from harness.checks.base import Evidence, Finding, Run
from harness.traces import distinct, pass_name


class UsedBeforeDefinition(Finding):
    """A bound symbol takes a name that nothing before it defines."""

    check: ClassVar[str] = "used before definition"
    promise: ClassVar[str] = "Every name in a trace is defined before it is used."


class UsedAfterDeletion(Finding):
    """A bound symbol takes a name that was deleted before."""

    check: ClassVar[str] = "used after deletion"
    promise: ClassVar[str] = "No name in a trace is used after its deletion."


def check(run: Run) -> Iterator[Finding]:
    """The first violation in the forward and in the backward traces of each compiled specialisation."""
    for compilation in run.subject.compilations:
        for traces, label in ((compilation.forward, "forward"), (compilation.backward, "backward")):
            findings = (
                finding for trace in distinct(traces) for finding in _check(run, compilation.step, trace, label)
            )
            yield from islice(findings, 1)


def _check(run: Run, step: int, trace: Any, label: str) -> Iterator[Finding]:
    defined = {proxy.name for proxy in tree_iter((trace.args, trace.kwargs)) if isinstance(proxy, Proxy)}
    deleted: set[str] = set()
    for bsym in trace.bound_symbols:
        unpacks_argument = bsym.sym.id == prims.PrimIDs.UNPACK_TRIVIAL
        for proxy in () if unpacks_argument else bsym.flat_proxy_args:
            place = f"in the {label} trace after the pass {pass_name(trace)!r}"
            evidence = Evidence(names=(proxy.name,), traces=((f"{label} trace", trace),), step=step)
            if proxy.name in deleted:
                message = f"{bsym.sym.name} takes {proxy.name} after its deletion {place}"
                yield UsedAfterDeletion(run, message, stage=label, where=pass_name(trace), evidence=evidence)
            elif proxy.name not in defined:
                message = f"{bsym.sym.name} takes {proxy.name} before its definition {place}"
                yield UsedBeforeDefinition(run, message, stage=label, where=pass_name(trace), evidence=evidence)
        if bsym.sym.id == prims.PrimIDs.DEL:
            deleted |= {proxy.name for proxy in bsym.flat_proxy_args}
        defined |= {proxy.name for proxy in bsym.flat_proxy_outs}
