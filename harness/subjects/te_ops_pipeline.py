"""A whole ``te.ops.Sequential`` under TE's operation fuser, its parameters in place or hidden as FSDP hides them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import transformer_engine.pytorch as te
from torch import Tensor, nn

from harness.build import DTYPES, parameter_names
from harness.case import Activation, AnyLayer, GatedActivation, LayerNorm, Linear, RMSNorm, output_width
from harness.precision import Recipes
from harness.subjects.base import LinearState, Subject
from harness.subjects.eager_te_ops import basic_linear_state

ACTIVATION_OPS = {
    "relu": "ReLU",
    "gelu_tanh": "GELU",
    "silu": "SiLU",
    "squared_relu": "SReLU",
    "quick_gelu": "QGELU",
    "reglu": "ReGLU",
    "geglu": "GEGLU",
    "swiglu": "SwiGLU",
    "qgeglu": "QGEGLU",
}
"""Names in ``transformer_engine.pytorch.ops``."""


class TeOpsPipeline(Subject):
    """The reference: all parameters stay where they are."""

    name: ClassVar[str] = "te.ops pipeline"

    def prepare(self) -> None:
        self._recipes = Recipes(self.case)
        self._ops: dict[str, nn.Module] = {}
        width = self.case.input.features
        for index, layer in enumerate(self.case.layers):
            self._ops[str(index)] = self._op(str(index), layer, width)
            width = output_width((layer,), width)
        self.pipeline = te.ops.Sequential(*self._ops.values())

    def forward(self, index: int, x: Tensor) -> Tensor:
        recipe = self._recipes.for_step(index)
        with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
            return self.pipeline(x)

    def wrong_call(self, index: int, x: Tensor) -> None:
        self.forward(index, x)

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        return {
            path: basic_linear_state(op)
            for (path, op), layer in zip(self._ops.items(), self.case.layers, strict=True)
            if isinstance(layer, Linear)
        }

    def _op(self, path: str, layer: AnyLayer, width: int) -> nn.Module:
        parameters = {name: self._parameters[f"{path}.{name}"] for name in parameter_names(layer)}
        name, arguments = op_call(layer, width)
        placement = {"device": self.device, "dtype": DTYPES[self.case.input.dtype]} if parameters else {}
        op: nn.Module = getattr(te.ops, name)(**arguments, **placement)
        for name, parameter in parameters.items():
            op.register_parameter(name, parameter)
        return op


def op_call(layer: AnyLayer, width: int) -> tuple[str, dict[str, Any]]:
    """The operation in ``te.ops`` that computes a layer: its class and how it is called, without device and dtype."""
    match layer:
        case Linear():
            return "Linear", {"in_features": width, "out_features": layer.out_features, "bias": layer.bias}
        case LayerNorm() | RMSNorm():
            options = {"eps": layer.eps, "zero_centered_gamma": layer.zero_centered_gamma}
            return type(layer).__name__, {"normalized_shape": width, **options}
        case Activation() | GatedActivation():
            return ACTIVATION_OPS[layer.function], {}
        case _:
            raise TypeError(f"{type(layer).__name__} has no te.ops counterpart in a pipeline")


class TeOpsPipelineHidden(TeOpsPipeline):
    """The same pipeline; its parameters are hidden when the case says."""

    name: ClassVar[str] = "te.ops pipeline with hidden parameters"

    def deep_copy(self) -> None:
        self.pipeline = copy.deepcopy(self.pipeline)
        self._ops = dict(zip(self._ops, self.pipeline, strict=True))
        self._parameters = {
            f"{path}.{name}": getattr(self._ops[path], name)
            for path, _, name in (full.rpartition(".") for full in self._parameters)
        }

    def around_step(self, index: int) -> AbstractContextManager[None]:
        assert self.case.fuser is not None
        return hidden_parameters(self.pipeline) if self.case.fuser.hide_parameters == "from_start" else nullcontext()

    def before_backward(self, index: int) -> AbstractContextManager[None]:
        assert self.case.fuser is not None
        if self.case.fuser.hide_parameters == "between_forward_and_backward":
            return hidden_parameters(self.pipeline)
        return nullcontext()


@contextmanager
def hidden_parameters(module: nn.Module) -> Iterator[None]:
    """Take all parameters out of ``module.parameters()``; they stay reachable as plain attributes.

    This is what FSDP1 with ``use_orig_params=True`` does between forward and backward
    (torch/distributed/fsdp/_flat_param.py).
    """
    taken = [(owner, name, owner._parameters.pop(name)) for owner in module.modules() for name in [*owner._parameters]]
    for owner, name, parameter in taken:
        object.__setattr__(owner, name, parameter)
    try:
        yield
    finally:
        for owner, name, parameter in taken:
            object.__delattr__(owner, name)
            owner._parameters[name] = parameter
