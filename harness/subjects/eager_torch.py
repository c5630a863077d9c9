"""Plain eager torch: the reference for ``thunder.jit`` without TE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from harness.program import all_parameter_names, compile_function
from harness.subjects.base import Subject, leaf_parameters


class EagerTorch(Subject):
    """The case's program as torch runs it, in the case's dtype."""

    name: ClassVar[str] = "eager torch"

    def prepare(self) -> None:
        self._model = compile_function(self.case.layers, self.case.input.features)
        self._parameters = leaf_parameters(self.case, self.device)

    def parameters(self) -> Mapping[str, Tensor]:
        return self._parameters

    def forward(self, index: int, x: Tensor) -> Tensor:
        return self._model(x, *[self._parameters[name] for name in all_parameter_names(self.case.layers)])
