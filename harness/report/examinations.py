"""What a standalone program does with Thunder's traces: the checks of ``harness.checks`` in a few plain lines each.

Every text leaves a list ``faults``. Words in angle brackets stand for other text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

JOINT = 'next(t for t in thunder.last_traces(jitted) if "Grad transform pass" in str(t.get_provenance()))'
SPLIT = "next(t for t in thunder.last_traces(jitted) if TraceTag.AUGMENTED_FORWARD in t.tags)"
FORWARD = "thunder.last_traces(jitted)[-1]"
BACKWARD = "thunder.last_backward_traces(jitted)[-1]"

COMPUTED = '''
def computed(bsym):
    """Names that a bound symbol computes: no unpacking, no deletion, and nothing that it only hands on."""
    if "unpack" in bsym.sym.name or bsym.sym.name in ("python_del", "python_return"):
        return set()
    return {proxy.name for proxy in bsym.flat_proxy_outs} - {proxy.name for proxy in bsym.flat_proxy_args}
'''
SYMBOLS = """
trace = <trace>
stateful = re.compile(r"(te_linear|get_te_fp8_state|get_te_fp8_quantizers)_\\d+")
symbols = [bsym for bsym in trace.bound_symbols if stateful.fullmatch(bsym.sym.name)]
counts = Counter(bsym.sym.name for bsym in symbols)
faults = [f"{name} is bound {count} times in the <label> trace" for name, count in counts.items() if count > 1]
faults += [f"  {bsym}" for bsym in symbols if counts[bsym.sym.name] > 1]
"""
# What backward computes again is bound again on purpose.
SYMBOLS_OF_JOINT = SYMBOLS.replace(
    "counts =",
    "symbols = [bsym for bsym in symbols if BoundSymbolTag.RECOMPUTE_IN_BACKWARD not in bsym.tags]\ncounts =",
)
QUANTIZERS = """
trace = <trace>
linears = [bsym for bsym in trace.bound_symbols if bsym.sym.name == "<symbol>"]
counts = Counter(bsym.args[position].name for bsym in linears for position in <positions>)
faults = [f"{count} calls of <symbol> use quantizer {name}" for name, count in counts.items() if count > 1]
"""
OBJECTS = """
stateful = re.compile(r"(te_linear|get_te_fp8_state|get_te_fp8_quantizers)_\\d+")
owners = defaultdict(set)
for trace in (thunder.last_traces(jitted)[-1], *thunder.last_backward_traces(jitted)[-1:]):
    for bsym in trace.bound_symbols:
        if stateful.fullmatch(bsym.sym.name):
            state = bsym._call_ctx[bsym.sym.name]
            owners[id(getattr(state, "func", state))].add(bsym.sym.name)
faults = [f"one state object behind {', '.join(sorted(names))}" for names in owners.values() if len(names) > 1]
"""
ASKED_AGAIN = """
asked = [
    {bsym.sym.name for bsym in trace.bound_symbols if bsym.sym.name.startswith("get_te_fp8_state_")}
    for trace in (<forward>, <backward>)
]
faults = [f"{name} is called in the forward and in the backward trace" for name in sorted(asked[0] & asked[1])]
"""
TWICE = """
faults = []
for trace in <traces>:
    counts = Counter(name for bsym in trace.bound_symbols for name in computed(bsym))
    faults += [f"{name} is computed {count} times in one trace" for name, count in counts.items() if count > 1]
"""
OVERLAP = """
forward = <forward>
backward = <backward>
known = {proxy.name: bsym for bsym in forward.bound_symbols for proxy in bsym.flat_proxy_outs}
faults = [
    f"{name} is computed in backward by {bsym.sym.name} and in forward by {known[name].sym.name}"
    for bsym in backward.bound_symbols
    for name in computed(bsym)
    if name in known
]
"""
OVERLAP_OF_SPLIT = f"""
# The first traces after the split into forward and backward: later passes merge equal calls.
{OVERLAP.strip()}
"""
DEFINITIONS = """
faults = []
for trace in <traces>:
    deleted = set()
    defined = {proxy.name for proxy in tree_iter((trace.args, trace.kwargs)) if hasattr(proxy, "name")}
    for bsym in trace.bound_symbols:
        names = set() if bsym.sym.name == "unpack_trivial" else {proxy.name for proxy in bsym.flat_proxy_args}
        faults += [f"{bsym.sym.name} takes {name} before its definition" for name in names - defined]
        faults += [f"{bsym.sym.name} takes {name} after its deletion" for name in names & deleted]
        deleted |= names if bsym.sym.name == "python_del" else set()
        defined |= {proxy.name for proxy in bsym.flat_proxy_outs}
"""
CLAIMS = """
names = [bsym.sym.name for bsym in <forward>.bound_symbols]
claimed = sum(name == "te_functional_linear_fwd" or name.startswith("te_linear_") for name in names)
faults = [] if claimed == <linears> else [f"TE runs {claimed} linears, and can run <linears>"]
"""
DRAWS = """
def draws(bsym):
    \'\'\'How many random operations a bound symbol holds.\'\'\'
    return int(bsym.sym.name == "uniform") or sum(map(draws, bsym.subsymbols))
""".replace("'''", '"""')
SAVED_FOR_BACKWARD = """
backward = <backward>
saved = dict(zip(("C0", "C1"), <forward>.output[1], strict=True))
unpacked = {bsym.args[0].name: bsym.output for bsym in backward.bound_symbols if bsym.sym.name == "unpack_sequence"}
faults = []
for collection, values in saved.items():
    names = [value.name for value in values]
    there = [value and value.name for value in unpacked.get(collection, ())]
    if len(there) != len(names) or any(name not in (None, expected) for name, expected in zip(there, names)):
        faults.append(f"forward saves {names}, backward unpacks {there}")
used = {
    proxy.name
    for bsym in backward.bound_symbols
    if "unpack" not in bsym.sym.name and bsym.sym.name != "python_del"
    for proxy in bsym.flat_proxy_args
}
faults += [f"backward does not use {value.name}" for value in saved["C0"] if value.name not in used]
"""
CHECK_TRACE = """
faults = []
for trace in <traces>:
    try:
        check_trace(trace)
    except Exception as error:
        faults.append(f"{trace.get_provenance()}: {error}")
"""
RANDOM = """
counts = [sum(map(draws, trace.bound_symbols)) for trace in thunder.last_traces(jitted)]
faults = [f"random operations in the traces, pass by pass: {counts}"] if len(set(counts)) > 1 else []
"""
SAVED = """
trace = <forward>
arguments = {proxy.name for proxy in tree_iter((trace.args, trace.kwargs)) if hasattr(proxy, "name")}
saved = {proxy.name for proxy in trace.output[1][0]} - arguments
faults = [f"forward saves {name}" for name in sorted(saved)] if len(saved) >= <linears> else []
"""


@dataclass(frozen=True, slots=True)
class Examination:
    """Text of a program that looks at traces after the last step."""

    code: str
    imports: tuple[str, ...] = ()
    functions: str = ""


EXAMINATIONS = {
    "stateful symbol": Examination(SYMBOLS, ("import re", "from collections import Counter")),
    "quantizer": Examination(QUANTIZERS, ("from collections import Counter",)),
    "state object": Examination(OBJECTS, ("import re", "from collections import defaultdict")),
    "state asked again": Examination(ASKED_AGAIN),
    "name computed twice": Examination(TWICE, ("from collections import Counter",), COMPUTED),
    "name in forward and backward": Examination(OVERLAP, (), COMPUTED),
    "used before definition": Examination(DEFINITIONS, ("from thunder.core.pytree import tree_iter",)),
    "used after deletion": Examination(DEFINITIONS, ("from thunder.core.pytree import tree_iter",)),
    "saved for backward": Examination(SAVED_FOR_BACKWARD),
    "saved needlessly": Examination(SAVED_FOR_BACKWARD),
    "check_trace": Examination(CHECK_TRACE, ("from thunder.dev_utils.check_trace import check_trace",)),
    "claims": Examination(CLAIMS),
    "random operations": Examination(RANDOM, (), DRAWS),
    "recomputation": Examination(SAVED, ("from thunder.core.pytree import tree_iter",)),
}
"""By the name of the check."""

SPECIAL = {
    ("stateful symbol", "joint"): Examination(
        SYMBOLS_OF_JOINT,
        (
            "import re",
            "from collections import Counter",
            "from thunder.core.symbol import BoundSymbolTag",
        ),
    ),
    ("name in forward and backward", "split"): Examination(
        OVERLAP_OF_SPLIT, ("from thunder.core.trace import TraceTag",), COMPUTED
    ),
}
"""By the name of the check and the stage, where the stage asks for another text."""


def examination(check: str, stage: str, where: str, linears: int) -> Examination | None:
    """The examination for a bucket; None for a check that does not look at traces.

    ``linears`` is the number of linears that TE has to claim, or of regions that backward computes again.
    """
    found = SPECIAL.get((check, stage), EXAMINATIONS.get(check))
    if found is None:
        return None
    split = stage == "split"
    words = {
        "trace": {"joint": JOINT, "backward": BACKWARD}.get(stage, FORWARD),
        "traces": f"thunder.last_{'backward_' if stage == 'backward' else ''}traces(jitted)",
        "forward": SPLIT if split else FORWARD,
        "backward": "thunder.last_backward_traces(jitted)[0]" if split else BACKWARD,
        "label": stage,
        "symbol": where,
        "positions": "(3, 4, 5)" if where.endswith("_bwd") else "(3, 4)",
        "linears": str(linears),
    }
    code = re.sub(r"<(\w+)>", lambda match: words[match[1]], found.code)
    return Examination(code.strip(), found.imports, found.functions.strip())
