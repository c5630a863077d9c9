"""A case's model as a straight-line Python program: what every subject runs, and what a report prints.

Thunder interprets the program's bytecode; a loop over modules costs it several times more than the same layers written
out. The text is generated from validated data (integers, floats and names from fixed lists), never from free text.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable
from functools import lru_cache
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
    Checkpoint,
    GatedActivation,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
    output_width,
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

CACHED_PROGRAMS = 256
Function = Callable[..., Tensor]


def argument_name(name: str) -> str:
    """A parameter's name in the program: ``1.0.weight`` -> ``weight_1_0``."""
    path, _, leaf = name.rpartition(".")
    return f"{leaf}_{path.replace('.', '_')}"


def all_parameter_names(layers: tuple[AnyLayer, ...], prefix: str = "") -> list[str]:
    """Names of all parameters in the order of the program's arguments."""
    names: list[str] = []
    for index, layer in enumerate(layers):
        if isinstance(layer, Residual | Checkpoint):
            names += all_parameter_names(layer.body, f"{prefix}{index}.")
        names += [f"{prefix}{index}.{name}" for name in parameter_names(layer)]
    return names


def function_source(layers: tuple[AnyLayer, ...], width: int) -> str:
    """``def model(x, weight_0, bias_0, ...)``: the parameters are arguments."""
    arguments = ", ".join(["x", *map(argument_name, all_parameter_names(layers))])
    body = _Writer("", layers, width).text("    ")
    return f"def model({arguments}):\n{body}    return x\n"


def module_source(layers: tuple[AnyLayer, ...], width: int) -> str:
    """``class Model(nn.Module)`` whose parameters are its attributes."""
    body = _Writer("self.", layers, width).text("        ")
    return f"class Model(nn.Module):\n    def forward(self, x):\n{body}        return x\n"


@lru_cache(maxsize=CACHED_PROGRAMS)
def compile_function(layers: tuple[AnyLayer, ...], width: int) -> Function:
    """The model as a function of x and all parameters (``all_parameter_names``' order)."""
    function: Function = _execute(function_source(layers, width))["model"]
    return function


@lru_cache(maxsize=CACHED_PROGRAMS)
def compile_module(layers: tuple[AnyLayer, ...], width: int) -> type[nn.Module]:
    """The model as a module class without parameters; register them under ``argument_name``."""
    module: type[nn.Module] = _execute(module_source(layers, width))["Model"]
    return module


def _execute(source: str) -> dict[str, Any]:
    # Thunder's traces quote the lines of the program, which they look up here; each program under a name of its own.
    filename = f"<tefuzz model {zlib.crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "checkpoint": checkpoint}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


class _Writer:
    """Writes the statements of layers in a row."""

    def __init__(self, owner: str, layers: tuple[AnyLayer, ...], width: int) -> None:
        self._owner = owner
        self._lines: list[str] = []
        self._row(layers, width, "", "x", "")

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
                case _:
                    for line in self._layer(layer, width, path, x):
                        self._write(indent, line)
            width = output_width((layer,), width)

    def _write(self, indent: str, line: str) -> None:
        self._lines.append(indent + line)

    def _layer(self, layer: AnyLayer, width: int, path: str, x: str) -> list[str]:
        names = [self._owner + argument_name(f"{path}.{name}") for name in parameter_names(layer)]
        match layer:
            case Linear():
                return [f"{x} = F.linear({', '.join([x, *names])})"]
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
            case _:
                raise TypeError(f"{type(layer).__name__} holds other layers")
