"""Every stateful symbol is bound once and backed by a state object of its own.

Two linears that share ``te_linear_0``, an FP8 state or a quantizer share one set of scales. The numbers go wrong only
steps later; the traces are wrong at once. v2's final traces do not show a shared symbol (Thunder merges what looks
like the same call), so the joint trace is inspected too, and quantizers are compared between linears.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from harness.checks.base import Evidence, Finding, Run
from harness.precision import claimed_linears
from harness.traces import (
    LINEAR_BACKWARD,
    LINEAR_FORWARD,
    STATEFUL,
    distinct,
    linears_using,
    pass_name,
    state_object,
)


class StatefulSymbolShared(Finding):
    """One stateful symbol is bound several times in one trace."""

    check: ClassVar[str] = "stateful symbol"
    promise: ClassVar[str] = (
        "Every stateful symbol is bound once in a trace: it stands for the FP8 state of one linear."
    )


class StateObjectShared(Finding):
    """Two stateful symbols call the same state object."""

    check: ClassVar[str] = "state object"
    promise: ClassVar[str] = "Every stateful symbol has a state object of its own."


class QuantizerShared(Finding):
    """Two linears of one trace quantise with the same quantizer."""

    check: ClassVar[str] = "quantizer"
    promise: ClassVar[str] = "Every linear quantises with quantizers of its own."


class StateAskedAgain(Finding):
    """Backward asks again for the FP8 state of forward, which updates its scales once more."""

    check: ClassVar[str] = "state asked again"
    promise: ClassVar[str] = (
        "Backward does not ask again for the FP8 state of forward, which would update its scales once more."
    )


def check(run: Run) -> Iterator[Finding]:
    """The first violation of each kind in each compiled specialisation; all of Thunder's traces are inspected."""
    for compilation in run.subject.compilations:
        for kind in (_shared_symbols, _shared_quantizers):
            inspected = (
                finding
                for trace, label in _inspected(compilation.forward, compilation.backward)
                for finding in kind(run, compilation.step, trace, label)
            )
            yield from islice(inspected, 1)
        yield from _shared_objects(run, compilation.step, (*compilation.forward[-1:], *compilation.backward[-1:]))


def check_recomputation(run: Run) -> Iterator[Finding]:
    """A recomputed linear may ask for its quantizers again, but not for its FP8 state; the numbers would stay exact."""
    for compilation in run.subject.compilations:
        asked = [
            {bsym.sym.name for bsym in trace.bound_symbols if bsym.sym.name.startswith("get_te_fp8_state_")}
            for trace in (*compilation.forward[-1:], *compilation.backward[-1:])
        ]
        if len(asked) == 2 and (both := asked[0] & asked[1]):
            yield StateAskedAgain(
                run,
                f"{min(both)} is called in the forward and in the backward trace",
                stage="final",
                where="get_te_fp8_state",
                evidence=Evidence(
                    _layers(run, compilation.step, compilation.forward[-1], min(both)),
                    (min(both),),
                    (("forward trace", compilation.forward[-1]), ("backward trace", compilation.backward[-1])),
                    compilation.step,
                ),
            )


def _inspected(forward: tuple[Any, ...], backward: tuple[Any, ...]) -> Iterator[tuple[Any, str]]:
    for trace in distinct(forward):
        yield trace, "joint" if pass_name(trace) == "Grad transform pass" else "forward"
    for trace in distinct(backward):
        yield trace, "backward"


def _shared_symbols(run: Run, step: int, trace: Any, label: str) -> Iterator[Finding]:
    counts: Counter[str] = Counter()
    for bsym in trace.bound_symbols:
        # A symbol that is recomputed in backward is bound again on purpose, except for the state itself: a joint
        # trace must not ask twice for the FP8 state of one linear.
        if STATEFUL.match(bsym.sym.name) and not (label == "joint" and _recomputed(bsym)):
            counts[bsym.sym.name] += 1
    for name, count in counts.items():
        if count > 1:
            yield StatefulSymbolShared(
                run,
                f"{name} is bound {count} times in the {label} trace: two linears share one FP8 state "
                f"(pass {pass_name(trace)!r})",
                stage=label,
                where=_stem(name),
                evidence=Evidence(_layers(run, step, trace, name), (name,), ((f"{label} trace", trace),), step),
            )
            return


def _recomputed(bsym: Any) -> bool:
    from thunder.core.symbol import BoundSymbolTag

    return BoundSymbolTag.RECOMPUTE_IN_BACKWARD in bsym.tags


def _shared_quantizers(run: Run, step: int, trace: Any, label: str) -> Iterator[Finding]:
    for symbol, positions in ((LINEAR_FORWARD, (3, 4)), (LINEAR_BACKWARD, (3, 4, 5))):
        users: defaultdict[str, int] = defaultdict(int)
        for bsym in trace.bound_symbols:
            if bsym.sym.name == symbol and not (label == "joint" and _recomputed(bsym)):
                for position in positions:
                    users[bsym.args[position].name] += 1
        for quantizer, count in users.items():
            if count > 1:
                yield QuantizerShared(
                    run,
                    f"quantizer {quantizer} is used by {count} calls of {symbol} in the {label} trace "
                    f"(pass {pass_name(trace)!r})",
                    stage=label,
                    where=symbol,
                    evidence=Evidence(
                        _layers(run, step, trace, quantizer), (quantizer,), ((f"{label} trace", trace),), step
                    ),
                )
                return


def _shared_objects(run: Run, step: int, traces: tuple[Any, ...]) -> Iterator[Finding]:
    owners: dict[int, str] = {}
    for trace in traces:
        for bsym in trace.bound_symbols:
            if not STATEFUL.match(bsym.sym.name):
                continue
            state = state_object(bsym)
            # v1 wraps its module in a partial, made anew for each call.
            key = id(getattr(state, "func", state))
            owner = owners.setdefault(key, bsym.sym.name)
            if owner != bsym.sym.name:
                yield StateObjectShared(
                    run,
                    f"{owner} and {bsym.sym.name} are backed by one {type(state).__name__} object",
                    stage="final",
                    where=_stem(owner),
                    evidence=Evidence(names=(owner, bsym.sym.name), traces=(("trace", trace),), step=step),
                )
                return


def _layers(run: Run, step: int, trace: Any, name: str) -> tuple[str, ...]:
    """Paths of the linears that depend on a stateful symbol or on a quantizer."""
    claimed = claimed_linears(run.case, step)
    return tuple(claimed[index] for index in linears_using(trace, name) if index < len(claimed))


def _stem(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
