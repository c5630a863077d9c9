"""From a case to tensors and modules: the same seeded weights and data for every subject.

Values are drawn on the CPU, whatever the device, so a case means the same numbers everywhere.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import (
    AnyLayer,
    Batch,
    Case,
    Checkpoint,
    Distribution,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
    output_width,
)

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def step_batch(case: Case, index: int) -> Batch:
    """The leading dimensions of the input of step ``index``."""
    return case.steps[index].batch or case.input.batch


def make_input(case: Case, index: int) -> Tensor:
    """Fresh input of step ``index``, shape [*batch, features], in the case's dtype, on the CPU."""
    shape = (*step_batch(case, index), case.input.features)
    return draw_tensor(case.input.distribution, shape, _generator(case.seed, f"input {index}")).to(
        DTYPES[case.input.dtype]
    )


def make_output_gradient(case: Case, index: int) -> Tensor:
    """Gradient of the loss with respect to the output of step ``index``.

    Drawn from a seed of its own: with the input's seed the input gradient of a LayerNorm nearly cancels.
    """
    shape = (*step_batch(case, index), output_width(case.layers, case.input.features))
    generator = _generator(case.seed, f"output gradient {index}")
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(DTYPES[case.input.dtype])


def draw_tensor(distribution: Distribution, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values of a named distribution in float32. Every one is finite in float16 too."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float32)
    match distribution:
        case "normal":
            return normal
        case "wide_range_rows":
            # Log-uniform row scales over 2^-8 to 2^8: a wrong FP8 scale is invisible in values of one magnitude.
            exponent = torch.rand((*shape[:-1], 1), generator=generator) * 16 - 8
            return normal * torch.exp2(exponent)
        case "fp8_representable":
            # Multiples of 1/8 up to 1.75: exact in E4M3 at scales that are powers of two.
            return torch.randint(-14, 15, shape, generator=generator).to(torch.float32) / 8
        case "outliers":
            outlier = torch.rand(shape, generator=generator) < 0.01
            return torch.where(outlier, normal * 256, normal)
        case "one_hot_rows":
            column = torch.randint(0, shape[-1], shape[:-1], generator=generator)
            return F.one_hot(column, shape[-1]).to(torch.float32)
        case "large":
            return normal * 2.0**8
        case "small":
            return normal * 2.0**-8
        case "zeros":
            return torch.zeros(shape, dtype=torch.float32)


def make_parameters(case: Case) -> dict[str, Tensor]:
    """All parameters by name (``0.weight``, ``1.0.bias``...), on the CPU, in the case's dtype."""
    parameters: dict[str, Tensor] = {}
    _add_parameters(parameters, case, case.layers, case.input.features, "")
    return parameters


def frozen_parameters(layers: tuple[AnyLayer, ...], prefix: str = "") -> set[str]:
    """Names of the parameters that need no gradient."""
    names: set[str] = set()
    for index, layer in enumerate(layers):
        if isinstance(layer, Residual | Checkpoint):
            names |= frozen_parameters(layer.body, f"{prefix}{index}.")
        elif isinstance(layer, Linear | LayerNorm | RMSNorm):
            names |= {f"{prefix}{index}.{name}" for name in layer.frozen}
    return names


def _add_parameters(
    parameters: dict[str, Tensor], case: Case, layers: tuple[AnyLayer, ...], width: int, prefix: str
) -> None:
    dtype = DTYPES[case.input.dtype]

    def add(name: str, shape: tuple[int, ...], scale: float, centre: float = 0.0) -> None:
        values = torch.randn(shape, generator=_generator(case.seed, f"parameter {name}"), dtype=torch.float32)
        parameters[name] = (values * scale + centre).to(dtype)

    for index, layer in enumerate(layers):
        path = f"{prefix}{index}"
        match layer:
            case Linear():
                add(f"{path}.weight", (layer.out_features, width), 1 / math.sqrt(width))
                if layer.bias:
                    add(f"{path}.bias", (layer.out_features,), 0.5)
            case LayerNorm() | RMSNorm():
                # Not all ones: a scale that is dropped or used twice must show.
                add(f"{path}.weight", (width,), 0.25, 0.0 if layer.zero_centered_gamma else 1.0)
                if isinstance(layer, LayerNorm):
                    add(f"{path}.bias", (width,), 0.25)
            case Residual() | Checkpoint():
                _add_parameters(parameters, case, layer.body, width, f"{path}.")
        width = output_width((layer,), width)


def _generator(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose: adding a layer does not change the values of the others."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {purpose}".encode()))


def parameter_names(layer: AnyLayer) -> tuple[str, ...]:
    """Names of the parameters that the layer itself owns."""
    match layer:
        case Linear():
            return ("weight", "bias") if layer.bias else ("weight",)
        case LayerNorm():
            return ("weight", "bias")
        case RMSNorm():
            return ("weight",)
        case _:
            return ()
