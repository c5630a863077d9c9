"""What a run leaves behind in the process: tensors, and entries of Thunder's and TE's process-wide tables.

A model that was compiled, run and dropped should leave nothing. The case runs again in the same process, which forgets
nothing in between, as a program that makes one model after the other. What grows every time is a leak.
"""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch
from thunder.core import vjp_utils
from torch._subclasses.fake_tensor import FakeTensor
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

from harness.checks.base import Finding, Run
from harness.te_executors import executor_v1, executor_v2

ONE_CASE_IN = 12
TE_EXECUTORS = (executor_v1, executor_v2)
ROUNDS = 2
"""Only what grows in each of them counts: the first run of a kind fills lazy caches."""


class StateGrows(Finding):
    """A run leaves something in the process that the next one adds to."""

    check: ClassVar[str] = "state growth"
    promise: ClassVar[str] = "A model that is gone leaves no tensors and no entries in process-wide tables."


def check(run: Run, again: Callable[[], object]) -> Iterator[Finding]:
    """A finding for each table that grows; ``again`` runs the subject and drops all of it."""
    grown: dict[str, int] | None = None
    before = sizes()
    for _ in range(ROUNDS):
        again()
        now = sizes()
        growth = {name: now[name] - before[name] for name in now if now[name] > before[name]}
        grown = growth if grown is None else {name: min(grown[name], growth[name]) for name in grown if name in growth}
        before = now
        if not grown:
            return
    for name, count in (grown or {}).items():
        yield StateGrows(run, f"each run adds {count} to: {name}", stage="repeated run", where=name)


def sizes() -> Mapping[str, int]:
    """How much there is of what should not grow, by what it is."""
    gc.collect()
    in_globals = [item for value in vars(FP8GlobalStateManager).values() for item in _leaves(value)]
    known = {id(item) for item in in_globals}
    # isinstance would ask lazy objects for their class. Dynamo keeps some of its fake tensors, which hold no memory.
    kinds = (type(item) for item in gc.get_objects() if id(item) not in known)
    tensors = sum(1 for kind in kinds if issubclass(kind, torch.Tensor) and not issubclass(kind, FakeTensor))
    return {
        "live tensors": tensors,
        "entries of TE's FP8 globals": len(in_globals),
        "operators of Thunder's TE executors": sum(
            len(ex.opmap) + len(ex.implmap) for ex in (executor_v1, executor_v2)
        ),
        "pairs of forward and backward in Thunder's vjp_utils": len(vjp_utils._cache),
        "generated programs in linecache": len(linecache.cache),
    }


def _leaves(value: Any) -> Iterator[Any]:
    """What the collections of a process-wide object hold, keys left out."""
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, item.name) for item in fields(value)]  # TE 2.20 keeps everything in one object
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
