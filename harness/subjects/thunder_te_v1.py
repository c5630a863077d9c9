"""``thunder.jit`` with the TE executor v1 (``transformer_engine_v1_ex``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import thunder

from harness.precision import Recipes
from harness.subjects.base import Compilation, LinearState
from harness.subjects.eager_te_modules import module_state
from harness.subjects.thunder_jit import ThunderSubject
from harness.te_executors import executor_v1
from harness.traces import te_v1_modules


class ThunderTeV1(ThunderSubject):
    """Thunder's first TE executor: the recipe is an option of ``thunder.jit``; the caller's autocast is ignored."""

    name: ClassVar[str] = "thunder with TE v1"

    def jit_options(self, recipes: Recipes) -> dict[str, Any]:
        return {
            "executors": [executor_v1, thunder.pytorch_executor],
            "te_fp8_recipe": recipes.for_step(0),
        }

    def read_state(self, compilation: Compilation, claimed: tuple[str, ...]) -> Mapping[str, LinearState]:
        """States in the order of the linears; {} when Thunder claimed others than it should (a check reports that)."""
        modules = te_v1_modules(compilation.forward[-1])
        if len(modules) != len(claimed):
            return {}
        return {path: module_state(module) for path, module in zip(claimed, modules, strict=True)}
