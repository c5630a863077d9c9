"""``thunder.jit`` or ThunderFX with one executor list: what all Thunder subjects share."""

from __future__ import annotations

import abc
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import thunder
import torch._dynamo
from thunder.core.transform_common import dce
from thunder.core.transforms import grad
from thunder.dynamo import thunderfx
from thunder.transforms.constant_folding import ConstantFolding
from torch import Tensor, nn

from harness.case import Case, Transform
from harness.precision import Recipes, claimed_linears
from harness.program import compile_function, make_module, parameter_slots
from harness.subjects.base import Compilation, LinearState, Subject
from harness.te_executors import TransformV2


class DeadCodeElimination(thunder.Transform):  # type: ignore[misc]  # Thunder is not typed
    """A user's own transform that changes nothing: Thunder has eliminated dead code before and does it afterwards."""

    def transform_traces_pre_prologue(self, prologue: Any, computation: Any, epilogue: Any, **_: Any) -> Any:
        return prologue, dce(computation), epilogue


TRANSFORMS: dict[Transform, Callable[[], Any]] = {
    "transformer_engine": TransformV2,
    "constant_folding": ConstantFolding,
    "dead_code_elimination": DeadCodeElimination,
}


class ThunderSubject(Subject):
    """The case's model, as a module or as a function, under ``thunder.jit`` or ``thunderfx``."""

    def __init__(self, case: Case, device: str) -> None:
        super().__init__(case, device)
        # With Thunder's own list of traces, which it hands out again when it finds the specialisation in its cache.
        self._compiled: list[tuple[Any, Compilation]] = []
        self._current: Compilation | None = None
        self.jitted: Any = None
        self._calls: dict[int, int] = {}
        """Calls so far of each program that Thunder compiled, by identity."""

    @abc.abstractmethod
    def jit_options(self, recipes: Recipes) -> dict[str, Any]:
        """Keyword arguments of ``thunder.jit`` beside the cache mode and the transforms."""

    def read_state(self, compilation: Compilation, claimed: tuple[str, ...]) -> Mapping[str, LinearState]:
        """FP8 state held by compiled traces; {} for an executor without any."""
        return {}

    def prepare(self) -> None:
        assert self.case.jit is not None
        self.recipes = Recipes(self.case)
        options = self.jit_options(self.recipes) | {"cache": self.case.jit.cache}
        options["transforms"] = [TRANSFORMS[name]() for name in self.case.jit.all_transforms]
        layers, width, names = self.case.layers, self.case.input.features, self.case.jit.names
        self._slots: list[str] = []
        if self.case.jit.entry == "module":
            self.jitted = thunder.jit(make_module(layers, width, self._parameters, names), **options)
            return
        self._slots = list(parameter_slots(layers, width).values())
        function = compile_function(layers, width, names)
        if self.case.jit.entry == "thunderfx":
            # Dynamo keeps its graphs by code object, which cases share.
            torch.compiler.reset()
            # Thunder's interpreter would have to make them, and stops there (docs/findings.md, "dict-keys").
            torch._dynamo.config.use_lazy_graph_module = False
            self.jitted = thunderfx(function, dynamic=False, **options)
            return
        self.jitted = thunder.jit(function, **options)
        if self.case.jit.entry == "grad":
            self.jitted = grad(self.jitted)

    def left_to_inductor(self) -> tuple[tuple[str, str], ...]:
        if self.case.jit is None or self.case.jit.entry != "thunderfx" or self.jitted is None:
            return ()
        reasons = [reason for info in self.jitted._backend.subgraph_infos for reason in info.split_reasons]
        return tuple((_operation(str(reason.info)), str(reason.exception or reason.info)) for reason in reasons)

    def set_training(self, training: bool) -> None:
        if isinstance(self.jitted, nn.Module):
            self.jitted.train(training)

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        output: Tensor | tuple[Tensor, ...] = self._call_and_note(index, x)
        return output

    def wrong_call(self, index: int, x: Tensor) -> None:
        # Not noted: the traces of a program that ends in the middle promise nothing. Dynamo logs what it raises.
        logging.disable(logging.ERROR)
        try:
            with self.torch_autocast(index):
                self.call(index, x)
        finally:
            logging.disable(logging.NOTSET)

    def gradients_only(self, index: int, x: Tensor) -> None:
        leaves = [x, *self._arguments()]
        for leaf, gradient in zip(leaves, self._call_and_note(index, x), strict=True):
            leaf.grad = gradient

    def _compiled_programs(self) -> list[Any]:
        """What ``thunder.jit`` returned: one program, or one for each graph of Dynamo."""
        if self.case.jit is not None and self.case.jit.entry == "thunderfx":
            infos = self.jitted._backend.subgraph_infos
            return [program for info in infos for program in info.thunder_compiled_fns]
        return [self.jitted]

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
        for program in self._compiled_programs():
            stats = thunder.compile_stats(program)
            # Of Dynamo's graphs only some run in a step.
            if stats.calls != self._calls.get(id(program), 0):
                self._calls[id(program)] = stats.calls
                self._note_traces(stats, index, finished)

    def _note_traces(self, stats: Any, index: int, finished: bool) -> None:
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


def _operation(information: str) -> str:
    """The name of the function in ``... and target: <built-in function linear>, ...``."""
    found = re.search(r"target: <(?:built-in )?(?:function|method) (\w+)", information)
    return found[1] if found else "an operation"
