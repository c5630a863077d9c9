"""``thunder.jit`` without TE."""

from __future__ import annotations

from typing import Any, ClassVar

import thunder

from harness.precision import Recipes
from harness.subjects.thunder_jit import ThunderSubject


class ThunderTorch(ThunderSubject):
    """Thunder with its torch executor alone; it ignores FP8 autocast."""

    name: ClassVar[str] = "thunder with torch"

    def jit_options(self, recipes: Recipes) -> dict[str, Any]:
        return {"executors": [thunder.pytorch_executor]}
