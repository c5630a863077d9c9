"""The case in float64, each layer split into primitive operations as a compiler may split it.

Run as it is, it says what is right; run under noise (``harness.rounding``), what rounding may make of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from harness import build
from harness.case import (
    GATED_BY,
    Activation,
    ActivationFunction,
    AnyLayer,
    Autocast,
    Case,
    Cast,
    Checkpoint,
    Dropout,
    Dtype,
    ExtraOutput,
    GatedActivation,
    InPlace,
    InPlaceOperation,
    LayerNorm,
    Linear,
    NoGrad,
    Rearrange,
    Residual,
    RMSNorm,
    executed,
    in_autocast,
    parameter_owners,
    walk,
    without_grad,
)
from harness.precision import differentiated
from harness.program import weight_operation
from harness.subjects.base import Subject
from harness.subjects.parts import run_part

LARGEST_EXPONENT = 700.0
"""exp of 710 overflows in float64."""
UNIT_ROUNDOFF: dict[Dtype, float] = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


class OverflowsError(ArithmeticError):
    """The case's values leave the range of its dtype, where float64 says nothing about the right result."""

    def __init__(self, dtype: str, largest: float) -> None:
        super().__init__(f"values up to {largest:.1e} may overflow {dtype}")
        self.dtype = dtype


class Float64(Subject):
    """The case's schedule in float64. Values that may overflow the case's dtype raise ``OverflowsError``.

    Dropout drops what Thunder drops: its masks are those of the part that Thunder compiles, from the same seed.
    """

    name: ClassVar[str] = "float64"

    def prepare(self) -> None:
        self._owners = parameter_owners(self.case.layers, self.case.input.features)
        self._limit = torch.finfo(build.DTYPES[coarsest_dtype(self.case)]).max ** 0.25

    def input_values(self, index: int) -> Tensor:
        with _disable_current_modes():
            return super().input_values(index).double()

    def output_gradient(self, index: int, output: int) -> Tensor:
        with _disable_current_modes():
            return super().output_gradient(index, output).double()

    def parameter_values(self, index: int | None) -> dict[str, Tensor]:
        with _disable_current_modes():
            return {name: value.double() for name, value in super().parameter_values(index).items()}

    def optimized(self) -> None:
        # The optimizer writes in place, into parameters of the case's dtype: one more rounding, of the sum.
        with torch.no_grad():
            for parameter in self._parameters.values():
                parameter.copy_(parameter * 1)

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        with _disable_current_modes():
            self._masks = dropout_masks(self.case, index)
        self._in_autocast = set(in_autocast(self.case.layers, self.case.steps[index].torch_autocast))
        self._extra_outputs: list[Tensor] = []
        output = self._row(self.case.layers, x, "")
        return (output, *self._extra_outputs) if self._extra_outputs else output

    def _row(self, layers: tuple[AnyLayer, ...], x: Tensor, prefix: str) -> Tensor:
        for index, layer in enumerate(layers):
            x = self._layer(layer, x, f"{prefix}{index}")
            self._check_range(x)
        return x

    def _layer(self, layer: AnyLayer, x: Tensor, path: str) -> Tensor:
        owner = self._owners.get(path, path)
        own = [self._parameters[f"{owner}.{name}"] for name in build.parameter_names(layer)]
        match layer:
            case Residual():
                return x + self._row(layer.body, x.clone(), f"{path}.")
            case NoGrad():
                with torch.no_grad():
                    inner = self._row(layer.body, x.clone(), f"{path}.")
                return x + inner
            case Checkpoint():
                return self._row(layer.body, x, f"{path}.")
            case Cast() | Autocast():
                # Times one: two operations, which round as the casts do.
                return self._row(layer.body, x * 1, f"{path}.") * 1
            case ExtraOutput():
                self._extra_outputs.append(x)
                return x
            case Linear():
                bias = [parameter * 1 for parameter in own[1:]] if path in self._in_autocast else own[1:]
                return F.linear(x, weight_operation(own[0], layer.weight_operation) * 1, *bias)
            case LayerNorm():
                return _layer_norm(layer.eps, layer.zero_centered_gamma, x, *own)
            case RMSNorm():
                return _rms_norm(layer.eps, layer.zero_centered_gamma, x, *own)
            case Activation():
                return PRIMITIVE_ACTIVATIONS[layer.function](x)
            case GatedActivation():
                gate, value = torch.chunk(x, 2, dim=-1)
                return PRIMITIVE_ACTIVATIONS[GATED_BY[layer.function]](gate) * value
            case Dropout():
                return x * self._masks[path] if path in self._masks else x
            case InPlace():
                return PRIMITIVE_IN_PLACE[layer.operation](x)
            case Rearrange():
                return x

    def _check_range(self, x: Tensor) -> None:
        """Refuse values whose cube, which the gradient of a norm holds, comes near the end of the dtype's range."""
        if x.numel() and (largest := float(x.detach().abs().max())) > self._limit:
            raise OverflowsError(coarsest_dtype(self.case), largest)


def coarsest_dtype(case: Case) -> Dtype:
    """The dtype with the largest unit roundoff that the case computes in, weights that are cast and back included."""
    found: set[Dtype] = {case.input.dtype}
    if any(step.torch_autocast for step in case.steps):
        found.add("bfloat16")
    for _, layer in walk(case.layers):
        if isinstance(layer, Autocast):
            found.add("bfloat16" if layer.enabled else "float32")
        if isinstance(layer, Cast):
            found.add(layer.dtype)
        if isinstance(layer, Linear) and layer.weight_operation == "cast_and_back":
            found.add("bfloat16")
    return max(found, key=UNIT_ROUNDOFF.__getitem__)


def dropout_masks(case: Case, index: int) -> dict[str, Tensor]:
    """What each active dropout of step ``index`` multiplies with, by path: 0 or 1 / (1 - probability), in float64.

    Thunder's part runs on ones, in the order of the program and from the seed of the step.
    """
    if not build.drops(case, index):
        return {}
    torch.manual_seed(build.dropout_seed(case, index))
    masks: dict[str, Tensor] = {}
    trains, inside_no_grad = case.steps[index].mode == "train", without_grad(case.layers)
    for path, layer, width, dtype in executed(case.layers, case.input.features, case.input.dtype):
        if not isinstance(layer, Dropout):
            continue
        assert dtype is not None
        ones = torch.ones((*build.step_batch(case, index), width), dtype=build.DTYPES[dtype])
        with torch.set_grad_enabled(trains and path not in inside_no_grad):
            kept = run_part(layer, ones, [], differentiated=differentiated(case, index)) != 0
        masks[path] = kept.double() / (1 - layer.probability)
    return masks


def _layer_norm(eps: float, zero_centered: bool, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    scale = weight + 1 if zero_centered else weight
    return centred * torch.rsqrt(variance + eps) * scale + bias


def _rms_norm(eps: float, zero_centered: bool, x: Tensor, weight: Tensor) -> Tensor:
    scale = weight + 1 if zero_centered else weight
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps) * scale


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def _exp(x: Tensor) -> Tensor:
    """exp that stays finite: an infinite one makes 0 * inf = NaN of a sigmoid's gradient, which is then zero."""
    return torch.exp(x.clamp(max=LARGEST_EXPONENT))


def _silu(x: Tensor) -> Tensor:
    return x / (1 + _exp(-x))


def _quick_gelu(x: Tensor) -> Tensor:
    return x / (1 + _exp(-1.702 * x))


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x) * F.relu(x)


PRIMITIVE_ACTIVATIONS: dict[ActivationFunction, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "squared_relu": _squared_relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "quick_gelu": _quick_gelu,
}

PRIMITIVE_IN_PLACE: dict[InPlaceOperation, Callable[[Tensor], Tensor]] = {
    "relu_": F.relu,
    "mul_": lambda x: x * 0.5,
    "add_": lambda x: x + 1,
}
