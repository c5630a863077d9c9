"""Eager references: TE runs the linears that the JIT's TE executor has to claim, Thunder's parts run the rest."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import transformer_engine.pytorch as te
from torch import Tensor, nn

from harness.build import AUTOCAST_DTYPE, DTYPES, drops, parameter_names, random_numbers_kept
from harness.case import (
    Activation,
    AnyLayer,
    Autocast,
    Cast,
    Checkpoint,
    Dropout,
    ExtraOutput,
    Linear,
    NoGrad,
    Residual,
    in_autocast,
    output_width,
    parameter_owners,
)
from harness.fp8_globals import OwnFp8Globals
from harness.precision import Recipes, claimed_linears, differentiated, specialisation
from harness.program import weight_operation
from harness.subjects.base import LinearState, Subject
from harness.subjects.parts import run_part


class ComposedSubject(Subject):
    """Eager TE linears and Thunder's parts in the order of the case.

    Thunder keeps the FP8 state of a linear in the compiled function, one for each specialisation (input shape, grad
    mode, training mode). The reference mirrors that: it has TE modules for each specialisation, with shared parameters,
    and TE globals for each, so that the end of one's autocast region does not move on the amax histories of the other.
    """

    updates_without_grad: ClassVar[bool] = False
    """Whether scales are updated at the end of an autocast region also without grad, where TE leaves them."""

    def prepare(self) -> None:
        self._recipes = Recipes(self.case)
        self._modules: dict[Any, dict[str, Any]] = {}
        self._globals: dict[Any, OwnFp8Globals] = {}
        self._to_pass_on: list[tuple[Tensor, nn.Parameter]] = []
        self._owners = parameter_owners(self.case.layers, self.case.input.features)

    def around_step(self, index: int) -> AbstractContextManager[None]:
        return self._globals.setdefault(specialisation(self.case, index), OwnFp8Globals()).active()

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        modules = self._modules_of(index)
        claimed = set(claimed_linears(self.case, index))
        self._differentiated = differentiated(self.case, index)
        self._drops = drops(self.case, index)
        self._in_autocast = set(in_autocast(self.case.layers, self.case.steps[index].torch_autocast))
        self._extra_outputs: list[Tensor] = []
        recipe = self._recipes.for_step(index)
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() or self.updates_without_grad),
            te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe),
            torch.set_grad_enabled(self.case.steps[index].mode == "train"),
        ):
            output = self._run_row(modules, claimed, self.case.layers, self.case.input.features, "", x)
        return (output, *self._extra_outputs) if self._extra_outputs else output

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        modules = self._modules_of(index)
        return {path: self.state_of(modules, path) for path in claimed_linears(self.case, index)}

    @abc.abstractmethod
    def run_claimed(self, modules: dict[str, Any], row: list[tuple[str, AnyLayer, int]], x: Tensor) -> Tensor:
        """Run consecutive layers (path, layer, input width) that TE's kernels compute; the first one is a linear.

        ``modules`` is where TE modules of this specialisation are kept.
        """

    @abc.abstractmethod
    def state_of(self, modules: dict[str, Any], path: str) -> LinearState:
        """FP8 state of the linear at ``path``."""

    def joins_row(self, layer: AnyLayer) -> bool:
        """Whether a layer that follows a claimed linear is computed exactly alike by TE and Thunder."""
        return False

    def own_parameters(self, path: str, layer: AnyLayer) -> list[nn.Parameter]:
        """The parameters that one layer uses, in ``parameter_names``' order."""
        owner = self._owners.get(path, path)
        return [self._parameters[f"{owner}.{name}"] for name in parameter_names(layer)]

    def linear_parameters(self, path: str, layer: Linear) -> list[nn.Parameter]:
        """Weight and bias for TE's module, which takes parameters only.

        Autograd cannot lead through them to a weight that an operation was computed on, so such a linear gets leaves of
        its own, whose gradients ``finish_backward`` passes on. So do linears that share parameters: the JIT adds up
        their gradients before it adds the sum to what earlier steps left, and rounding sees the difference.
        """
        own = self.own_parameters(path, layer)
        shared = path in self._owners or path in self._owners.values()
        if layer.weight_operation == "none" and not shared and path not in self._in_autocast:
            return own
        weight, *bias = own
        computed = self._cast(
            path,
            weight_operation(weight, layer.weight_operation),
            *(parameter.view_as(parameter) for parameter in bias),
        )
        leaves = [nn.Parameter(result.detach(), requires_grad=result.requires_grad) for result in computed]
        self._to_pass_on += zip(computed, leaves, strict=True)
        return leaves

    def te_linear(
        self, modules: dict[str, Any], path: str, layer: Linear, make: Callable[[nn.Parameter], nn.Module]
    ) -> nn.Module:
        """The TE linear of one call, which holds its parameters; ``make`` builds it for a weight like the given one."""
        parameters = self.linear_parameters(path, layer)
        if path not in modules:
            with random_numbers_kept():  # a new module initialises its weights
                modules[path] = make(parameters[0])
        module: nn.Module = modules[path]
        for name, parameter in zip(("weight", "bias"), parameters, strict=False):
            if getattr(module, name) is not parameter:
                module.register_parameter(name, parameter)
        return module

    def _cast(self, path: str, *operands: Tensor) -> tuple[Tensor, ...]:
        """What torch.autocast makes of operands of a linear: Thunder's rule casts them before the executor's turn."""
        if path not in self._in_autocast:
            return operands
        return tuple(operand.to(AUTOCAST_DTYPE) for operand in operands)

    def finish_backward(self) -> None:
        reached = [(result, leaf) for result, leaf in self._to_pass_on if leaf.grad is not None]
        if reached:
            results, leaves = zip(*reached, strict=True)
            torch.autograd.backward(results, [leaf.grad for leaf in leaves])
        self._to_pass_on = [(result, leaf) for result, leaf in self._to_pass_on if leaf.grad is None]

    def _modules_of(self, index: int) -> dict[str, Any]:
        return self._modules.setdefault(specialisation(self.case, index), {})

    def _run_row(
        self,
        modules: dict[str, Any],
        claimed: set[str],
        layers: tuple[AnyLayer, ...],
        width: int,
        prefix: str,
        x: Tensor,
    ) -> Tensor:
        row: list[tuple[str, AnyLayer, int]] = []
        for index, layer in enumerate(layers):
            path = f"{prefix}{index}"
            joins = path in claimed or bool(row and self.joins_row(layer))
            # TE's fuser lets one linear write straight into the FP8 input of the next: no rounding in between, which
            # the JIT has. So a linear right after a linear starts a new row.
            if row and (not joins or (isinstance(layer, Linear) and isinstance(row[-1][1], Linear))):
                x = self._run_claimed(modules, row, x)
                row = []
            if joins:
                row.append((path, layer, width))
            else:
                x = self._run_other(modules, claimed, layer, width, path, x)
            width = output_width((layer,), width)
        return self._run_claimed(modules, row, x) if row else x

    def _run_claimed(self, modules: dict[str, Any], row: list[tuple[str, AnyLayer, int]], x: Tensor) -> Tensor:
        return self.run_claimed(modules, row, *self._cast(row[0][0], x))

    def _run_other(
        self, modules: dict[str, Any], claimed: set[str], layer: AnyLayer, width: int, path: str, x: Tensor
    ) -> Tensor:
        match layer:
            case Residual():
                return x + self._run_row(modules, claimed, layer.body, width, f"{path}.", x.clone())
            case NoGrad():
                with torch.no_grad():
                    inner = self._run_row(modules, claimed, layer.body, width, f"{path}.", x.clone())
                return x + inner
            case Checkpoint():
                # Recomputation must not change a number, so the reference does without it.
                return self._run_row(modules, claimed, layer.body, width, f"{path}.", x)
            case Cast():
                inner = x.to(DTYPES[layer.dtype])
                return self._run_row(modules, claimed, layer.body, width, f"{path}.", inner).to(x.dtype)
            case Autocast():
                inner = x if layer.enabled else x.float()
                return self._run_row(modules, claimed, layer.body, width, f"{path}.", inner).to(x.dtype)
            case ExtraOutput():
                self._extra_outputs.append(x)
                return x if path == str(len(self.case.layers) - 1) else x.clone()
            case Dropout() if not self._drops:
                return x
            case Linear():
                operands = self._cast(path, x, *self.own_parameters(path, layer))
                return run_part(layer, operands[0], list(operands[1:]), differentiated=self._differentiated)
            case _:
                return run_part(layer, x, list(self.own_parameters(path, layer)), differentiated=self._differentiated)


def is_relu(layer: AnyLayer) -> bool:
    """ReLU is exact in every implementation; no other activation is."""
    return isinstance(layer, Activation) and layer.function == "relu"
