"""``thunder.jit`` with the TE executor v2 (``transformer_engine_ex`` and ``TransformerEngineTransform``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import thunder
import transformer_engine.pytorch as te
from torch import Tensor

from harness.precision import Recipes
from harness.subjects.base import Compilation, LinearState, QuantizerState
from harness.subjects.eager_te_ops import columns
from harness.subjects.thunder_jit import ThunderSubject
from harness.te_executors import executor_v2
from harness.traces import te_linears


class ThunderTe(ThunderSubject):
    """Thunder's functional TE executor: the recipe comes from the autocast around the call."""

    name: ClassVar[str] = "thunder with TE v2"

    def jit_options(self, recipes: Recipes) -> dict[str, Any]:
        return {"executors": [executor_v2, thunder.pytorch_executor]}

    def call(self, index: int, x: Tensor) -> Any:
        recipe = self.recipes.for_step(index)
        with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
            return super().call(index, x)

    def read_state(self, compilation: Compilation, claimed: tuple[str, ...]) -> Mapping[str, LinearState]:
        """States in the order of the linears; {} when Thunder claimed others than it should (a check reports that)."""
        linears = te_linears(compilation.forward[-1], (compilation.backward or compilation.forward)[-1])
        if len(linears) != len(claimed):
            return {}
        state: dict[str, LinearState] = {}
        for path, linear in zip(claimed, linears, strict=True):
            quantizers: dict[str, QuantizerState] = {}
            if linear.forward_state is not None:
                quantizers |= columns(linear.forward_state.state, ("input", "weight"))
            if linear.backward_state is not None:
                quantizers |= columns(linear.backward_state.state, ("grad_output",))
            state[path] = quantizers
        return state
