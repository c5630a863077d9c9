"""Reverts of the remat fix: what backward recomputes keeps the names of forward.

Two ways. ``remat`` puts recomputation back to where Thunder 0.2.4 did it: not in the joint trace under new names, but
at the split, with the forward's names. ``remat-names`` only takes the new names away: the joint trace then defines
names twice, and what recomputes is lost or, behind a fusion executor, overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import thunder
import torch
from thunder.core.symbol import BoundSymbolTag
from thunder.transforms import autodiff
from torch.utils.checkpoint import checkpoint

from harness.fixes.base import Revert
from harness.fixes.patching import attribute, rewritten
from harness.traces import computed_names


def is_present() -> bool:
    """Whether no name is computed twice when a checkpointed region is compiled, in any trace or across passes."""
    jitted = thunder.jit(_checkpointed, executors=[thunder.pytorch_executor])
    with torch.enable_grad():
        jitted(torch.ones(2, requires_grad=True))
    forward, backward = thunder.last_traces(jitted), thunder.last_backward_traces(jitted)
    final = [*_names(forward[-1]), *_names(backward[-1])]
    return all(_unique(names) for names in (final, *map(_names, forward)))


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(_two_operations, x, use_reentrant=False)
    return result


def _two_operations(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.cos(x))


def _names(trace: Any) -> list[str]:
    return [name for bsym in trace.bound_symbols for name in computed_names(bsym)]


def _unique(names: list[str]) -> bool:
    return len(names) == len(set(names))


@contextmanager
def recomputed_at_split() -> Iterator[None]:
    """As in Thunder 0.2.4: the split copies the producers that backward needs, under their names."""
    without_insertion = rewritten(
        autodiff.grad_transform_on_trace, {"joint_trace, _ = InsertRecomputationsProcessor(joint_trace)()": "pass"}
    )
    with_copies = rewritten(
        autodiff.split_into_forward_and_backward,
        {
            "saved_for_backward = {}": (
                "forward_proxy_names = copy_producers(forward_part_bsyms, backward_part_bsyms, forward_proxy_names); "
                "saved_for_backward = {}"
            )
        },
        copy_producers=_copy_producers,
    )
    with (
        attribute(autodiff, "grad_transform_on_trace", without_insertion),
        attribute(autodiff, "split_into_forward_and_backward", with_copies),
    ):
        yield


@contextmanager
def names_kept() -> Iterator[None]:
    """What backward recomputes is not renamed."""
    literal = rewritten(
        autodiff.grad_transform_on_trace,
        {'new = output.replace_name("bw_" + output.name)': "new = output"},
    )
    with attribute(autodiff, "grad_transform_on_trace", literal):
        yield


def _copy_producers(forward: list[Any], backward: list[Any], forward_names: set[str]) -> set[str]:
    """Put copies of recomputable symbols into ``backward``, each before its first user and after what it needs itself.

    Returns the forward's names that backward still has to get from what was saved.
    """
    producers = {
        proxy.name: bsym
        for bsym in forward
        if autodiff._should_recompute_bsym_in_backward(bsym)
        for proxy in bsym.flat_proxy_outs
        if proxy.name not in {argument.name for argument in bsym.flat_proxy_args}
    }
    result: list[Any] = []
    copied: set[str] = set()

    def require_names(bsym: Any) -> None:
        for argument in bsym.flat_proxy_args:
            producer = producers.get(argument.name)
            if producer is None or argument.name in copied:
                continue
            copied.update(proxy.name for proxy in producer.flat_proxy_outs)
            require_names(producer)
            copy = producer.from_bsym()
            # Without the tag the v2 executor takes the copy for a forward symbol.
            copy.tags.add(BoundSymbolTag.BACKWARD)
            result.append(copy)

    for bsym in backward:
        require_names(bsym)
        result.append(bsym)
    backward[:] = result
    return forward_names - copied


REVERTS: Mapping[str, Revert] = {"remat": recomputed_at_split, "remat-names": names_kept}
