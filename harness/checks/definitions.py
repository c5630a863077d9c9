"""Nothing is used before it is defined or after it is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_iter

from harness.checks.base import Evidence, Finding, Run


class UsedBeforeDefinition(Finding):
    """A bound symbol takes a name that nothing before it defines."""

    check: ClassVar[str] = "used before definition"
    promise: ClassVar[str] = "Every name in a trace is defined before it is used."


class UsedAfterDeletion(Finding):
    """A bound symbol takes a name that was deleted before."""

    check: ClassVar[str] = "used after deletion"
    promise: ClassVar[str] = "No name in a trace is used after its deletion."


def check(run: Run) -> Iterator[Finding]:
    """The first violation in each final trace."""
    for compilation in run.subject.compilations:
        for traces, label in ((compilation.forward, "forward"), (compilation.backward, "backward")):
            if traces:
                yield from _check_trace(run, compilation.step, traces[-1], label)


def _check_trace(run: Run, step: int, trace: Any, label: str) -> Iterator[Finding]:
    defined = {proxy.name for proxy in tree_iter((trace.args, trace.kwargs)) if isinstance(proxy, Proxy)}
    deleted: set[str] = set()
    for bsym in trace.bound_symbols:
        unpacks_argument = bsym.sym.id == prims.PrimIDs.UNPACK_TRIVIAL
        for proxy in () if unpacks_argument else bsym.flat_proxy_args:
            if proxy.name in deleted:
                yield UsedAfterDeletion(
                    run, f"{bsym.sym.name} takes {proxy.name} after its deletion in the {label} trace",
                    stage=label, where=bsym.sym.name.rstrip("0123456789").rstrip("_"),
                    evidence=Evidence(names=(proxy.name,), traces=((f"{label} trace", trace),), step=step),
                )  # fmt: skip
                return
            if proxy.name not in defined:
                yield UsedBeforeDefinition(
                    run, f"{bsym.sym.name} takes {proxy.name} before its definition in the {label} trace",
                    stage=label, where=bsym.sym.name.rstrip("0123456789").rstrip("_"),
                    evidence=Evidence(names=(proxy.name,), traces=((f"{label} trace", trace),), step=step),
                )  # fmt: skip
                return
        if bsym.sym.id == prims.PrimIDs.DEL:
            deleted |= {proxy.name for proxy in bsym.flat_proxy_args}
        defined |= {proxy.name for proxy in bsym.flat_proxy_outs}
