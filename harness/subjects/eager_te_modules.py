"""Eager te.Linear modules for the claimed linears."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import transformer_engine.pytorch as te
from torch import Tensor

from harness.case import AnyLayer, Linear
from harness.subjects.base import LinearState, QuantizerState
from harness.subjects.composed import ComposedSubject
from harness.subjects.eager_te_ops import columns


class EagerTeModules(ComposedSubject):
    """The exact counterpart of Thunder's TE executor v1, which calls te.Linear's autograd function."""

    name: ClassVar[str] = "eager te modules"

    def run_claimed(self, modules: dict[str, Any], row: list[tuple[str, AnyLayer, int]], x: Tensor) -> Tensor:
        for path, layer, width in row:
            assert isinstance(layer, Linear)
            x = self.te_linear(modules, path, layer, partial(_linear, layer, width))(x)
        return x

    def state_of(self, modules: dict[str, Any], path: str) -> LinearState:
        return module_state(modules[path])


def _linear(layer: Linear, width: int, weight: Tensor) -> te.Linear:
    return te.Linear(width, layer.out_features, bias=layer.bias, params_dtype=weight.dtype, device=weight.device)


def module_state(module: Any) -> LinearState:
    """Delayed-scaling state of a TE module with one GEMM (``fp8_meta``, transformer_engine/pytorch/module/base.py)."""
    meta = module.fp8_meta
    state: dict[str, QuantizerState] = {}
    if "scaling_fwd" in meta:
        state |= columns(meta["scaling_fwd"], ("input", "weight"))
    if "scaling_bwd" in meta:
        state |= columns(meta["scaling_bwd"], ("grad_output",))
    return state
