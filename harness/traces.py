"""Reading Thunder's traces: TE's bound symbols, the state behind them, which names are computed and used.

Works on ``TraceCtx`` objects of Thunder 0.2.4 to 0.2.6. Names are those of
thunder/executors/transformer_engineex_impl.py and transformer_engine_v1ex.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from thunder.core import prims
from thunder.core.proxies import Proxy

STATEFUL = re.compile(r"(te_linear|get_te_fp8_state|get_te_fp8_quantizers)_\d+$")
"""Symbols backed by an object of their own. ``get_te_fp8_recipe_N`` only asks for the recipe; sharing it is meant."""

LINEAR_FORWARD = "te_functional_linear_fwd"
LINEAR_BACKWARD = "te_functional_linear_bwd"


@dataclass(frozen=True, slots=True)
class TeLinear:
    """One linear of the v2 executor in the final forward trace."""

    input_quantizer: str
    weight_quantizer: str
    quantizers_symbol: str
    forward_state: Any
    """The object behind ``get_te_fp8_state_N``; None when the trace does not show it."""
    backward_state: Any


def pass_name(trace: Any) -> str:
    """The pass that made a trace, without the time it took: ``Dead Code Elimination``."""
    provenance = trace.get_provenance()
    # Thunder's own ConstantFolding gives a plain text.
    return "acquisition" if provenance is None else str(getattr(provenance, "pss", provenance)).split(" (took")[0]


def distinct(traces: Iterable[Any]) -> Iterator[Any]:
    """The traces without repetitions: Thunder keeps one again after a pass that changed nothing."""
    last = None
    for trace in traces:
        if trace is not last:
            yield trace
        last = trace


def state_object(bsym: Any) -> Any:
    """The object that a stateful symbol calls."""
    return bsym._call_ctx[bsym.sym.name]


def te_linears(forward: Any, backward: Any) -> list[TeLinear]:
    """The v2 linears of a forward trace in order, with the state objects of both passes.

    Give the forward trace twice when there is no backward trace, or when one trace holds both passes.
    """
    producers = _quantizer_producers(forward)
    backward_states = _backward_states(backward, producers)
    linears = []
    for bsym in forward.bound_symbols:
        if bsym.sym.name != LINEAR_FORWARD:
            continue
        names = (bsym.args[3].name, bsym.args[4].name)
        symbol, state = producers.get(names[0], ("", None))
        linears.append(
            TeLinear(
                input_quantizer=names[0],
                weight_quantizer=names[1],
                quantizers_symbol=symbol,
                forward_state=state,
                backward_state=backward_states.get(symbol or names[0]),
            )
        )
    return linears


def te_v1_modules(forward: Any) -> list[Any]:
    """The ``TELinear`` modules behind the v1 linears of a forward trace, in order."""
    return [state_object(bsym).func for bsym in forward.bound_symbols if re.fullmatch(r"te_linear_\d+", bsym.sym.name)]


def linears_using(trace: Any, name: str) -> list[int]:
    """Positions of the TE linears, in forward order, that depend on a stateful symbol or on a quantizer."""
    sources: dict[str, set[str]] = {}
    linear_of_quantizer: dict[str, int] = {}
    found: set[int] = set()
    count = 0
    for bsym in trace.bound_symbols:
        if STATEFUL.match(bsym.sym.name):
            names = {bsym.sym.name}.union(*(sources.get(proxy.name, set()) for proxy in bsym.flat_proxy_args))
            for proxy in bsym.flat_proxy_outs:
                sources[proxy.name] = names
        if bsym.sym.name.startswith("te_linear_"):
            found |= {count} if bsym.sym.name == name else set()
            count += 1
        elif bsym.sym.name in (LINEAR_FORWARD, LINEAR_BACKWARD):
            quantizers = [bsym.args[position].name for position in (3, 4)]
            index = linear_of_quantizer.get(quantizers[0], count)
            if bsym.sym.name == LINEAR_FORWARD:
                index = count
                count += 1
                linear_of_quantizer[quantizers[0]] = index
            else:
                quantizers.append(bsym.args[5].name)
            if any(name == quantizer or name in sources.get(quantizer, ()) for quantizer in quantizers):
                found.add(index)
    return sorted(found)


def _quantizer_producers(trace: Any) -> dict[str, tuple[str, Any]]:
    """Quantizer proxy -> (name of the symbol that gives it, state object that the symbol reads)."""
    states: dict[str, Any] = {}
    producers: dict[str, tuple[str, Any]] = {}
    for bsym in trace.bound_symbols:
        if bsym.sym.name.startswith("get_te_fp8_state_"):
            states[bsym.output.name] = state_object(bsym)
        elif bsym.sym.name.startswith("get_te_fp8_quantizers_"):
            for proxy in bsym.flat_proxy_outs:
                producers[proxy.name] = (bsym.sym.name, states.get(bsym.args[0].name))
    return producers


def _backward_states(backward: Any, forward_producers: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """Forward quantizers symbol of a linear -> the state object of its output gradient."""
    own = _quantizer_producers(backward)
    result: dict[str, Any] = {}
    for bsym in backward.bound_symbols:
        if bsym.sym.name == LINEAR_BACKWARD:
            input_quantizer = bsym.args[3].name
            # A recomputed linear asks for its quantizers again, by the symbol of the forward trace.
            symbol, _ = own.get(input_quantizer) or forward_producers.get(input_quantizer, (input_quantizer, None))
            _, state = own.get(bsym.args[5].name, ("", None))
            result[symbol] = state
    return result


def is_unpacking(bsym: Any) -> bool:
    """Whether a bound symbol only takes arguments apart."""
    return "unpack" in bsym.sym.name or bsym.sym.id in (
        prims.PrimIDs.UNPACK_TRIVIAL,
        prims.PrimIDs.UNPACK_SEQUENCE,
    )


def computed_names(bsym: Any) -> Iterator[str]:
    """Names that a bound symbol computes: its proxy outputs that are not its own arguments."""
    if is_unpacking(bsym) or bsym.sym.id in (prims.PrimIDs.DEL, prims.PrimIDs.RETURN):
        return
    arguments = {proxy.name for proxy in bsym.flat_proxy_args}
    for proxy in bsym.flat_proxy_outs:
        if isinstance(proxy, Proxy) and proxy.name not in arguments:
            yield proxy.name
