"""A case's model as a straight-line Python program: what every subject runs, and what a report prints.

Thunder interprets the program's bytecode; a loop over modules costs it several times more than the same layers written
out. The text is generated from validated data (integers, floats and names from fixed lists), never from free text.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.build import parameter_names
from harness.case import (
    GATED_BY,
    Activation,
    ActivationFunction,
    AnyLayer,
    Autocast,
    Cast,
    Checkpoint,
    Dropout,
    ExtraOutput,
    GatedActivation,
    InPlace,
    InPlaceOperation,
    LayerNorm,
    Linear,
    NoGrad,
    ParameterNames,
    Rearrange,
    Rearrangement,
    Residual,
    RMSNorm,
    WeightOperation,
    executed,
    output_width,
    parameter_owners,
)

ACTIVATION_EXPRESSIONS: dict[ActivationFunction, str] = {
    "relu": "F.relu({x})",
    "gelu": "F.gelu({x})",
    "gelu_tanh": 'F.gelu({x}, approximate="tanh")',
    "silu": "F.silu({x})",
    "squared_relu": "F.relu({x}) * F.relu({x})",
    # The sigmoid form with 1.702 (``qgelu`` in transformer_engine/common/util/math.h).
    "quick_gelu": "{x} * torch.sigmoid(1.702 * {x})",
}

REARRANGE_EXPRESSIONS: dict[Rearrangement, str] = {
    # With a dimension of one in front, so that a vector has something to be transposed with.
    "transpose_twice": "{x}.unsqueeze(0).transpose(0, -1).contiguous().transpose(0, -1).squeeze(0)",
    "reshape_twice": "{x}.reshape(-1).reshape({x}.shape)",
    "split_and_concatenate": "torch.cat(torch.chunk({x}, 2, dim=-1), dim=-1)",
}

IN_PLACE_STATEMENTS: dict[InPlaceOperation, str] = {
    "relu_": "{x}.relu_()",
    "mul_": "{x}.mul_(0.5)",
    "add_": "{x}.add_(1)",
}

WEIGHT_EXPRESSIONS: dict[WeightOperation, str] = {
    "none": "{w}",
    "scale": "0.5 * {w}",
    "transpose_twice": "{w}.t().contiguous().t()",
    "reshape_twice": "{w}.reshape(-1).reshape({w}.shape)",
    "cast_and_back": "{w}.to(torch.bfloat16).type_as({w})",
}

CACHED_PROGRAMS = 256
Function = Callable[..., Any]


def parameter_slots(layers: tuple[AnyLayer, ...], width: int) -> dict[str, str]:
    """Every argument that the program takes beside x, in order, and the parameter that goes there.

    A linear that is called again has no slots of its own; tied ones have, for the parameters of the owner.
    """
    owners = parameter_owners(layers, width)
    slots: dict[str, str] = {}
    for path, layer, _, _ in executed(layers, width):
        if isinstance(layer, Linear) and layer.parameters == "called_again":
            continue
        slots |= {f"{path}.{name}": f"{owners.get(path, path)}.{name}" for name in parameter_names(layer)}
    return slots


def parameter_expressions(layers: tuple[AnyLayer, ...], width: int, names: ParameterNames = "plain") -> dict[str, str]:
    """What the user calls each slot: ``weight_1_0``, or ``layer_1_0.weight`` inside a submodule."""
    slots = list(parameter_slots(layers, width))
    return {slot: _expression(index, slot, names) for index, slot in enumerate(slots)}


def _expression(index: int, slot: str, names: ParameterNames) -> str:
    path, _, leaf = slot.rpartition(".")
    path = path.replace(".", "_")
    match names:
        case "plain":
            return f"{leaf}_{path}"
        case "nested":
            return f"layer_{path}.{leaf}"
        case "colliding":
            return f"layer_{index // 2}{'_' if index % 2 else '.'}weight"
        case "like_proxies":
            return f"t{index}"


def function_source(layers: tuple[AnyLayer, ...], width: int, names: ParameterNames = "plain") -> str:
    """``def model(x, weight_0, bias_0, ...)``: the parameters are arguments."""
    expressions = parameter_expressions(layers, width, names)
    writer = _Writer("", expressions, layers, width)
    arguments = ", ".join(["x", *expressions.values()])
    return f"def model({arguments}):\n{writer.text('    ')}    return {writer.result}\n"


def module_source(layers: tuple[AnyLayer, ...], width: int, names: ParameterNames = "plain") -> str:
    """``class Model(nn.Module)`` whose parameters are its attributes, or those of its submodules."""
    writer = _Writer("self.", parameter_expressions(layers, width, names), layers, width)
    body = writer.text("        ")
    return f"class Model(nn.Module):\n    def forward(self, x):\n{body}        return {writer.result}\n"


@lru_cache(maxsize=CACHED_PROGRAMS)
def compile_function(layers: tuple[AnyLayer, ...], width: int, names: ParameterNames = "plain") -> Function:
    """The model as a function of x and all parameters (``parameter_slots``' order).

    It returns the output, or a tuple of it and the extra outputs.
    """
    function: Function = _execute(function_source(layers, width, names))["model"]
    return function


def make_module(
    layers: tuple[AnyLayer, ...], width: int, parameters: Mapping[str, nn.Parameter], names: ParameterNames = "plain"
) -> nn.Module:
    """The model as a module that holds ``parameters``, which are given by their names in the case."""
    module = _compile_module(layers, width, names)()
    slots = parameter_slots(layers, width)
    for slot, expression in parameter_expressions(layers, width, names).items():
        owner, _, attribute = expression.rpartition(".")
        holder = module
        if owner:
            if not hasattr(module, owner):
                module.add_module(owner, nn.Module())
            holder = module.get_submodule(owner)
        holder.register_parameter(attribute, parameters[slots[slot]])
    return module


def weight_operation(weight: Tensor, operation: WeightOperation) -> Tensor:
    """The operation on a weight as the program writes it; without one, another view of the weight."""
    if operation == "none":
        return weight.view_as(weight)
    result: Tensor = _weight_function(operation)(weight)
    return result


@cache
def _weight_function(operation: WeightOperation) -> Function:
    function: Function = _execute(f"def operation(w):\n    return {WEIGHT_EXPRESSIONS[operation].format(w='w')}\n")[
        "operation"
    ]
    return function


@lru_cache(maxsize=CACHED_PROGRAMS)
def _compile_module(layers: tuple[AnyLayer, ...], width: int, names: ParameterNames) -> type[nn.Module]:
    module: type[nn.Module] = _execute(module_source(layers, width, names))["Model"]
    return module


def _execute(source: str) -> dict[str, Any]:
    # Thunder's traces quote the lines of the program, which they look up here; each program under a name of its own.
    filename = f"<tefuzz model {zlib.crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "checkpoint": checkpoint}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


class _Writer:
    """Writes the statements of layers in a row; ``result`` is the expression that the program returns."""

    def __init__(self, owner: str, expressions: Mapping[str, str], layers: tuple[AnyLayer, ...], width: int) -> None:
        self._owner = owner
        self._expressions = expressions
        self._owners = parameter_owners(layers, width)
        self._lines: list[str] = []
        self._extra: list[str] = []
        self._row(layers, width, "", "x", "")
        self.result = ", ".join(["x", *self._extra])

    def text(self, indent: str) -> str:
        return "".join(f"{indent}{line}\n" for line in self._lines)

    def _row(self, layers: tuple[AnyLayer, ...], width: int, prefix: str, x: str, indent: str) -> None:
        for index, layer in enumerate(layers):
            path = f"{prefix}{index}"
            match layer:
                case Residual():
                    # A clone: several uses of one tensor make autograd add several gradients, in an order that eager
                    # and JIT may choose differently. With the clone there are two to add, and a sum of two has none.
                    inner = f"{x}_{index}"
                    self._write(indent, f"{inner} = {x}.clone()")
                    self._row(layer.body, width, f"{path}.", inner, indent)
                    self._write(indent, f"{x} = {x} + {inner}")
                case Checkpoint():
                    name = f"region_{path.replace('.', '_')}"
                    self._write(indent, f"def {name}(y):")
                    self._row(layer.body, width, f"{path}.", "y", f"{indent}    ")
                    self._write(indent, "    return y")
                    self._write(indent, f"{x} = checkpoint({name}, {x}, use_reentrant=False)")
                case NoGrad():
                    inner = f"{x}_{index}"
                    self._write(indent, "with torch.no_grad():")
                    self._write(indent, f"    {inner} = {x}.clone()")
                    self._row(layer.body, width, f"{path}.", inner, f"{indent}    ")
                    self._write(indent, f"{x} = {x} + {inner}")
                case Cast():
                    inner = f"{x}_{index}"
                    self._write(indent, f"{inner} = {x}.to(torch.{layer.dtype})")
                    self._row(layer.body, width, f"{path}.", inner, indent)
                    self._write(indent, f"{x} = {inner}.type_as({x})")
                case Autocast():
                    inner = f"{x}_{index}"
                    self._write(indent, f"{inner} = {x}" if layer.enabled else f"{inner} = {x}.float()")
                    options = "dtype=torch.bfloat16" if layer.enabled else "enabled=False"
                    self._write(indent, f"with torch.autocast({x}.device.type, {options}):")
                    self._row(layer.body, width, f"{path}.", inner, f"{indent}    ")
                    self._write(indent, f"{x} = {inner}.type_as({x})")
                case ExtraOutput():
                    name = f"extra_{len(self._extra)}"
                    self._extra.append(name)
                    self._write(indent, f"{name} = {x}")
                    if index + 1 < len(layers):
                        # As for residuals: what follows may use its input twice.
                        self._write(indent, f"{x} = {x}.clone()")
                case _:
                    for line in self._layer(layer, width, path, x):
                        self._write(indent, line)
            width = output_width((layer,), width)

    def _write(self, indent: str, line: str) -> None:
        self._lines.append(indent + line)

    def _parameters(self, layer: AnyLayer, path: str) -> list[str]:
        if isinstance(layer, Linear) and layer.parameters == "called_again":
            path = self._owners[path]
        return [self._owner + self._expressions[f"{path}.{name}"] for name in parameter_names(layer)]

    def _layer(self, layer: AnyLayer, width: int, path: str, x: str) -> list[str]:
        names = self._parameters(layer, path)
        match layer:
            case Linear():
                weight = WEIGHT_EXPRESSIONS[layer.weight_operation].format(w=names[0])
                return [f"{x} = F.linear({', '.join([x, weight, *names[1:]])})"]
            case LayerNorm():
                scale = f"{names[0]} + 1" if layer.zero_centered_gamma else names[0]
                return [f"{x} = F.layer_norm({x}, ({width},), {scale}, {names[1]}, {layer.eps!r})"]
            case RMSNorm():
                scale = f"{names[0]} + 1" if layer.zero_centered_gamma else names[0]
                return [f"{x} = F.rms_norm({x}, ({width},), {scale}, {layer.eps!r})"]
            case Activation():
                return [f"{x} = {ACTIVATION_EXPRESSIONS[layer.function].format(x=x)}"]
            case GatedActivation():
                gate = ACTIVATION_EXPRESSIONS[GATED_BY[layer.function]].format(x="gate")
                return [f"gate, value = torch.chunk({x}, 2, dim=-1)", f"{x} = {gate} * value"]
            case Dropout():
                # A function has no mode; a module asks for its own.
                training = f", {self._owner}training" if self._owner else ""
                return [f"{x} = F.dropout({x}, {layer.probability!r}{training})"]
            case Rearrange():
                return [f"{x} = {REARRANGE_EXPRESSIONS[layer.how].format(x=x)}"]
            case InPlace():
                return [f"{x} = {x}.clone()", IN_PLACE_STATEMENTS[layer.operation].format(x=x)]
            case _:
                raise TypeError(f"{type(layer).__name__} holds other layers")
