"""What a checkpointed region computes is recomputed in backward, not saved.

The numbers are right either way; only the memory that the user wanted to save is not. Thunder 0.2.6 itself breaks the
rule for norms, gated activations and what reads its input twice, for the last layer of a region and for regions inside
regions, and TE's executors save the quantised operands of a region that is a single linear. So the rule is checked
where it holds: plain torch, nothing but checkpointed regions, which hold linears and simple activations and end with a
linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_iter

from harness.case import Activation, AnyLayer, Case, Checkpoint, Linear
from harness.checks.base import Evidence, Finding, Run


class IntermediateSaved(Finding):
    """Forward saves a value that backward should recompute."""

    check: ClassVar[str] = "recomputation"
    promise: ClassVar[str] = "What a checkpointed region computes is recomputed in backward, not saved."


def check(run: Run) -> Iterator[Finding]:
    """The first compiled specialisation whose forward trace saves more than regions take and give."""
    if not _recomputes_all(run.case):
        return
    for compilation in run.subject.compilations:
        if not compilation.backward or not compilation.finished:
            continue
        saved = _computed_and_saved(compilation.forward[-1])
        # Each region but the first may save its input, which the one before it has computed.
        if len(saved) >= len(run.case.layers):
            yield IntermediateSaved(
                run,
                f"forward saves {', '.join(sorted(saved))}, computed in {len(run.case.layers)} checkpointed regions",
                stage=run.case.steps[compilation.step].mode,
                where="saved for backward",
                evidence=Evidence(
                    layers=tuple(map(str, range(len(run.case.layers)))),
                    names=tuple(sorted(saved)),
                    traces=(
                        ("last forward trace", compilation.forward[-1]),
                        ("last backward trace", compilation.backward[-1]),
                    ),
                    step=compilation.step,
                ),
            )
            return


def _recomputes_all(case: Case) -> bool:
    if case.jit is None or case.jit.executor != "torch" or case.jit.entry == "grad":
        return False
    return all(isinstance(layer, Checkpoint) and _is_plain_region(layer) for layer in case.layers)


def _is_plain_region(region: Checkpoint) -> bool:
    ends_with_linear = bool(region.body) and isinstance(region.body[-1], Linear)
    return ends_with_linear and all(map(_is_recomputed, region.body))


def _is_recomputed(layer: AnyLayer) -> bool:
    if isinstance(layer, Activation):
        return layer.function not in ("squared_relu", "quick_gelu")
    return isinstance(layer, Linear)


def _computed_and_saved(trace: Any) -> set[str]:
    """Names of the tensors that a forward trace saves, but for its own arguments."""
    arguments = {proxy.name for proxy in tree_iter((trace.args, trace.kwargs)) if isinstance(proxy, Proxy)}
    _, (tensors, _) = trace.output
    return {proxy.name for proxy in tensors} - arguments
