"""``thunder.jit`` with one executor list: what all Thunder subjects share."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import thunder
from thunder.core.transforms import grad
from torch import Tensor, nn

from harness.case import Case
from harness.precision import Recipes, claimed_linears
from harness.program import compile_function, make_module, parameter_slots
from harness.subjects.base import Compilation, LinearState, Subject


class ThunderSubject(Subject):
    """The case's model, as a module or as a function, under ``thunder.jit``."""

    def __init__(self, case: Case, device: str) -> None:
        super().__init__(case, device)
        # With Thunder's own list of traces, which it hands out again when it finds the specialisation in its cache.
        self._compiled: list[tuple[Any, Compilation]] = []
        self._current: Compilation | None = None

    @abc.abstractmethod
    def jit_options(self, recipes: Recipes) -> dict[str, Any]:
        """Keyword arguments of ``thunder.jit`` beside the cache mode."""

    def read_state(self, compilation: Compilation, claimed: tuple[str, ...]) -> Mapping[str, LinearState]:
        """FP8 state held by compiled traces; {} for an executor without any."""
        return {}

    def prepare(self) -> None:
        assert self.case.jit is not None
        self.recipes = Recipes(self.case)
        options = self.jit_options(self.recipes) | {"cache": self.case.jit.cache}
        layers, width, names = self.case.layers, self.case.input.features, self.case.jit.names
        self._slots: list[str] = []
        if self.case.jit.entry == "module":
            self.jitted = thunder.jit(make_module(layers, width, self._parameters, names), **options)
        else:
            self._slots = list(parameter_slots(layers, width).values())
            self.jitted = thunder.jit(compile_function(layers, width, names), **options)
        if self.case.jit.entry == "grad":
            self.jitted = grad(self.jitted)

    def set_training(self, training: bool) -> None:
        if isinstance(self.jitted, nn.Module):
            self.jitted.train(training)

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        output: Tensor | tuple[Tensor, ...] = self._call_and_note(index, x)
        return output

    def wrong_call(self, index: int, x: Tensor) -> None:
        # Not noted: the traces of a program that ends in the middle promise nothing.
        with self.torch_autocast(index):
            self.call(index, x)

    def gradients_only(self, index: int, x: Tensor) -> None:
        leaves = [x, *self._arguments()]
        for leaf, gradient in zip(leaves, self._call_and_note(index, x), strict=True):
            leaf.grad = gradient

    def _call_and_note(self, index: int, x: Tensor) -> Any:
        finished = False
        try:
            with self.torch_autocast(index):
                result = self.call(index, x)
            finished = True
        finally:
            # Also of a step that raises: its traces tell which pass went wrong.
            self._note(index, finished)
        return result

    def _note(self, index: int, finished: bool) -> None:
        stats = thunder.compile_stats(self.jitted)
        traces = stats.last_traces
        known = next((compilation for known, compilation in self._compiled if known is traces), None)
        if known is None and traces:
            backward = tuple(stats.last_backward_traces)
            known = Compilation(step=index, forward=tuple(traces), backward=backward, finished=finished)
            self._compiled.append((traces, known))
        if known is not None:
            self._current = known

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        if self._current is None:  # Thunder kept no trace of what it ran
            return {}
        return self.read_state(self._current, claimed_linears(self.case, index))

    def call(self, index: int, x: Tensor) -> Any:
        """Call the jitted model for step ``index``."""
        return self.jitted(x, *self._arguments())

    def _arguments(self) -> list[Tensor]:
        return [self._parameters[name] for name in self._slots]

    def compilations(self) -> list[Compilation]:
        return [compilation for _, compilation in self._compiled]
