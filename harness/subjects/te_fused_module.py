"""``te.LayerNormLinear`` and ``te.LayerNormMLP``, and the same computation by one TE module for each part.

No JIT is involved. Both sides call the same kernels, but where a fused kernel rounds less often: a norm that writes FP8
does not round to the activation's dtype first. With float32 activations there is no such rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import transformer_engine.pytorch as te
from torch import Tensor, nn

from harness.build import DTYPES, parameter_names
from harness.case import (
    Activation,
    AnyLayer,
    Case,
    ExtraOutput,
    GatedActivation,
    LayerNorm,
    Linear,
    RMSNorm,
    output_width,
)
from harness.precision import Recipes, make_recipe
from harness.subjects.base import LinearState, QuantizerState, Subject
from harness.subjects.eager_te_modules import module_state
from harness.subjects.eager_te_ops import columns
from harness.subjects.te_ops_pipeline import ACTIVATION_OPS, op_call

ACTIVATION_NAMES = {
    function: {"SReLU": "srelu", "QGELU": "qgelu"}.get(name, name.lower()) for function, name in ACTIVATION_OPS.items()
}
"""Names of ``te.LayerNormMLP``'s activations."""


class _TeModules(Subject):
    """What both sides share: where parameters are, and how a step calls the modules."""

    def prepare(self) -> None:
        assert self.case.fused_module is not None
        self._recipes = Recipes(self.case)
        self._modules: dict[str, nn.Module] = {}
        recipe = make_recipe(self.case.precision.recipe)
        made_quantised = self.case.fused_module.fp8_weights
        with te.quantized_model_init(enabled=True, recipe=recipe) if made_quantised else nullcontext():
            places = self.build()
        for name, (module, attribute) in places.items():
            self._place(name, module, attribute, quantised=made_quantised)

    def build(self) -> dict[str, tuple[nn.Module, str]]:
        """Make the modules; by the parameter's name in the case the module and the attribute that hold it."""
        raise NotImplementedError

    def wrong_call(self, index: int, x: Tensor) -> None:
        self.forward(index, x)

    def set_training(self, training: bool) -> None:
        for module in self._modules.values():
            module.train(training)

    def _place(self, name: str, module: nn.Module, attribute: str, *, quantised: bool) -> None:
        """Let the module hold the parameter of the case, or its own FP8 weight the parameter's value."""
        parameter = self._parameters[name]
        own: nn.Parameter = getattr(module, attribute)
        if quantised and type(own) is not nn.Parameter:
            with torch.no_grad():
                own.copy_(parameter)
            own.requires_grad_(parameter.requires_grad)
            self._parameters[name] = own
        else:
            module.register_parameter(attribute, parameter)

    def _placement(self) -> dict[str, Any]:
        return {"params_dtype": DTYPES[self.case.input.dtype], "device": self.device}

    def _microbatch(self, index: int) -> dict[str, bool | None]:
        return {"is_first_microbatch": self.case.steps[index].first_microbatch}


class TeFusedModule(_TeModules):
    """The fused module."""

    name: ClassVar[str] = "fused te module"

    def build(self) -> dict[str, tuple[nn.Module, str]]:
        kind, options = fused_call(self.case)
        module: nn.Module = getattr(te, kind)(**options, **self._placement())
        self._modules["0"] = module
        return {name: (module, attribute) for name, attribute in parameter_places(self.case).items()}

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        with self._recipes.autocast(index):
            output: Tensor | tuple[Tensor, ...] = self._modules["0"](x, **self._microbatch(index))
        return output

    def deep_copy(self) -> None:
        self._modules = copy.deepcopy(self._modules)
        places = parameter_places(self.case)
        self._parameters = {name: getattr(self._modules["0"], places[name]) for name in self._parameters}

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        paths = [str(path) for path, layer in enumerate(self.case.layers) if isinstance(layer, Linear)]
        module = self._modules["0"]
        if len(paths) == 1:
            return {paths[0]: module_state(module)}
        # Three tensors of forward and two of backward for each GEMM (FP8FwdTensors and FP8BwdTensors).
        forward = _columns(module, "scaling_fwd", 6)
        backward = _columns(module, "scaling_bwd", 4)
        return {
            path: {
                name: columns[position]
                for name, columns, position in (
                    ("input", forward, 3 * number),
                    ("weight", forward, 3 * number + 1),
                    ("grad_output", backward, 2 * number),
                )
                if columns
            }
            for number, path in enumerate(paths)
        }


class TeModulesOneByOne(_TeModules):
    """The reference: ``te.LayerNorm`` or ``te.RMSNorm``, ``te.Linear``, and an activation of te.ops."""

    name: ClassVar[str] = "te modules one by one"

    def build(self) -> dict[str, tuple[nn.Module, str]]:
        places: dict[str, tuple[nn.Module, str]] = {}
        width = self.case.input.features
        for index, layer in enumerate(self.case.layers):
            path = str(index)
            if not _is_output(layer):
                self._modules[path] = self._part(layer, width)
            places |= {f"{path}.{name}": (self._modules[path], name) for name in parameter_names(layer)}
            width = output_width((layer,), width)
        return places

    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        extra: list[Tensor] = []
        with self._recipes.autocast(index):
            for path, layer in enumerate(self.case.layers):
                if isinstance(layer, ExtraOutput):
                    extra.append(x)
                    continue
                module = self._modules[str(path)]
                x = module(x, **self._microbatch(index)) if isinstance(layer, Linear) else module(x)
        return (x, *extra) if extra else x

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        return {
            str(path): module_state(self._modules[str(path)])
            for path, layer in enumerate(self.case.layers)
            if isinstance(layer, Linear)
        }

    def _part(self, layer: AnyLayer, width: int) -> nn.Module:
        if isinstance(layer, Linear):
            linear: nn.Module = te.Linear(width, layer.out_features, bias=layer.bias, **self._placement())
            return linear
        name, arguments = op_call(layer, width)
        kind = getattr(te if isinstance(layer, LayerNorm | RMSNorm) else te.ops, name)
        dtype = {"dtype": DTYPES[self.case.input.dtype], "device": self.device} if parameter_names(layer) else {}
        part: nn.Module = kind(**arguments, **dtype)
        return part


def fused_call(case: Case) -> tuple[str, dict[str, Any]]:
    """The class in ``te`` that computes the layers, and its options but for dtype and device."""
    norm, first, *rest = [layer for layer in case.layers if not _is_output(layer)]
    assert isinstance(norm, LayerNorm | RMSNorm)
    assert isinstance(first, Linear)
    options = {
        "eps": norm.eps,
        "zero_centered_gamma": norm.zero_centered_gamma,
        "normalization": type(norm).__name__,
        "bias": first.bias,
        "return_layernorm_output": any(map(_is_output, case.layers)),
    }
    width = case.input.features
    if not rest:
        return "LayerNormLinear", {"in_features": width, "out_features": first.out_features, **options}
    activation = rest[0]
    assert isinstance(activation, Activation | GatedActivation)
    sizes = {"hidden_size": width, "ffn_hidden_size": output_width((first, activation), width)}
    return "LayerNormMLP", {**sizes, "activation": ACTIVATION_NAMES[activation.function], **options}


def parameter_places(case: Case) -> dict[str, str]:
    """The attribute of the fused module that holds each parameter of the case."""
    parts = [(str(index), layer) for index, layer in enumerate(case.layers) if not _is_output(layer)]
    prefixes = ["layer_norm_", ""] if len(parts) == 2 else ["layer_norm_", "fc1_", "", "fc2_"]
    return {
        f"{path}.{name}": prefix + name
        for (path, layer), prefix in zip(parts, prefixes, strict=True)
        for name in parameter_names(layer)
    }


def _is_output(layer: AnyLayer) -> bool:
    return isinstance(layer, ExtraOutput)


def _columns(module: Any, key: str, count: int) -> dict[int, QuantizerState]:
    """The state of all tensors of one pass, by position; {} without any."""
    if key not in module.fp8_meta:
        return {}
    named = columns(module.fp8_meta[key], tuple(map(str, range(count))))
    return {int(name): state for name, state in named.items()}
