"""Plain eager torch: the reference for ``thunder.jit`` without TE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from harness.program import compile_function, parameter_slots
from harness.subjects.base import Subject, leaf_parameters


class EagerTorch(Subject):
    """The case's program as torch runs it, in the case's dtype."""

    name: ClassVar[str] = "eager torch"

    def prepare(self) -> None:
        layers, width = self.case.layers, self.case.input.features
        self._model = compile_function(layers, width)
        self._arguments = list(parameter_slots(layers, width).values())
        self._parameters = leaf_parameters(self.case, self.device)

    def parameters(self) -> Mapping[str, Tensor]:
        return self._parameters

    def replace_parameters(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        output: Tensor | tuple[Tensor, ...] = self._model(x, *[self._parameters[name] for name in self._arguments])
        return output
