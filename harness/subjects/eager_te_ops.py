"""Eager te.ops: claimed linears (and ReLUs after them) in ``te.ops.Sequential``, run by the operation fuser."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import transformer_engine.pytorch as te
from torch import Tensor, nn

from harness.case import AnyLayer, Linear
from harness.subjects.base import LinearState, QuantizerState
from harness.subjects.composed import ComposedSubject, is_relu


class EagerTeOps(ComposedSubject):
    """The exact counterpart of Thunder's TE executor v2, which calls te.ops' functional linear."""

    name: ClassVar[str] = "eager te.ops"
    # Thunder's v2 executor updates scales with TE's Python function, not with the fused kernel. The two differ by one
    # ulp of the scale and in whether a zero amax moves the history on; TE has a switch for the Python function.
    environment: ClassVar[Mapping[str, str]] = {"NVTE_UNFUSED_FP8_UPDATE": "1"}
    # Thunder's v2 executor does so after every linear, whatever the grad mode: the state is that of the specialisation.
    updates_without_grad: ClassVar[bool] = True

    def joins_row(self, layer: AnyLayer) -> bool:
        return is_relu(layer)

    def run_claimed(self, modules: dict[str, Any], row: list[tuple[str, AnyLayer, int]], x: Tensor) -> Tensor:
        # A new Sequential for each call: TE's fuser keeps the parameters that it saw first. State is in the ops.
        return te.ops.Sequential(*(self._op(modules, *entry) for entry in row))(x)

    def state_of(self, modules: dict[str, Any], path: str) -> LinearState:
        return basic_linear_state(modules[path])

    def _op(self, modules: dict[str, Any], path: str, layer: AnyLayer, width: int) -> nn.Module:
        if not isinstance(layer, Linear):
            return te.ops.ReLU()
        return self.te_linear(modules, path, layer, partial(_linear, layer, width))


def _linear(layer: Linear, width: int, weight: Tensor) -> te.ops.Linear:
    return te.ops.Linear(width, layer.out_features, bias=layer.bias, device=weight.device, dtype=weight.dtype)


def basic_linear_state(op: te.ops.Linear) -> LinearState:
    """Delayed-scaling state of a te.ops.Linear (``_fp8_metas`` in transformer_engine/pytorch/ops/op.py)."""
    basic = next(module for module in op.basic_ops if isinstance(module, te.ops.BasicLinear))
    metas = basic._fp8_metas
    if metas is None:
        return {}
    state: dict[str, QuantizerState] = {}
    for mode, key, names in (
        ("forward", "scaling_fwd", ("input", "weight")),
        ("backward", "scaling_bwd", ("grad_output",)),
    ):
        if metas[mode] is not None:
            state |= columns(metas[mode][key], names)
    return state


def columns(recipe_state: Any, names: tuple[str, ...]) -> dict[str, QuantizerState]:
    """The first columns of a ``DelayedScalingRecipeState`` by name; {} for a recipe without such state.

    ``scale`` has shape [quantizers], ``amax_history`` [history length, quantizers].
    """
    history: Tensor | None = getattr(recipe_state, "amax_history", None)
    if history is None:
        return {}
    scale: Tensor = recipe_state.scale
    # New ones: they are made from the state alone, and making them changes nothing.
    quantizers = recipe_state.make_quantizers()
    with torch.no_grad():
        return {
            name: QuantizerState(
                scale=scale[i].clone(),
                amax_history=history[:, i].clone(),
                format=quantizers[i].dtype.name.removeprefix("kFloat8"),
                own_columns=(quantizers[i].scale.data_ptr(), quantizers[i].amax.data_ptr())
                == (scale[i].data_ptr(), history[0, i].data_ptr()),
            )
            for i, name in enumerate(names)
        }
