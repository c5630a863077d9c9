"""Plain eager torch: the reference for ``thunder.jit`` without TE."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from harness.program import compile_function, parameter_slots
from harness.subjects.base import Subject


class EagerTorch(Subject):
    """The case's program as torch runs it, in the case's dtype."""

    name: ClassVar[str] = "eager torch"

    def prepare(self) -> None:
        layers, width = self.case.layers, self.case.input.features
        self._model = compile_function(layers, width)
        self._arguments = list(parameter_slots(layers, width).values())

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        with self.torch_autocast(index):
            output: Tensor | tuple[Tensor, ...] = self._model(x, *[self._parameters[name] for name in self._arguments])
        return output
