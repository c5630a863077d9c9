"""From a case to tensors and modules: the same seeded weights and data for every subject.

Values are drawn on the CPU, whatever the device, so a case means the same numbers everywhere.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import (
    AnyLayer,
    Batch,
    Case,
    Distribution,
    Dtype,
    ExtraOutput,
    LayerNorm,
    Layout,
    Linear,
    RMSNorm,
    executed,
    output_width,
    walk,
)

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


AUTOCAST_DTYPE = torch.bfloat16
"""What ``torch.autocast`` casts to."""


def step_batch(case: Case, index: int) -> Batch:
    """The leading dimensions of the input of step ``index``."""
    return case.steps[index].batch or case.input.batch


def make_input(case: Case, index: int) -> Tensor:
    """Fresh input of step ``index``, shape [*batch, features], in the case's dtype, contiguous, on the CPU."""
    shape = (*step_batch(case, index), case.input.features)
    return draw_tensor(case.input.distribution, shape, _generator(case.seed, f"input {index}")).to(
        DTYPES[case.input.dtype]
    )


def make_output_gradient(case: Case, index: int, output: int = 0) -> Tensor:
    """Gradient of the loss with respect to an output of step ``index``, in the layout of the case, on the CPU.

    Output 0 is the last layer's, the others are those of ``ExtraOutput`` in order. Drawn from a seed of its own: with
    the input's seed the input gradient of a LayerNorm nearly cancels.
    """
    shape = (*step_batch(case, index), output_widths(case)[output])
    generator = _generator(case.seed, f"output gradient {index}" + (f" {output}" if output else ""))
    if case.input.gradient_layout == "expanded":
        return torch.ones((), dtype=DTYPES[case.input.dtype]).expand(shape)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float32).to(DTYPES[case.input.dtype])
    if case.steps[index].torch_autocast:
        # The output may be in autocast's dtype, and its gradient with it: a value that both can hold.
        gradient = gradient.to(AUTOCAST_DTYPE).to(gradient.dtype)
    return laid_out(gradient, case.input.gradient_layout)


def output_widths(case: Case) -> list[int]:
    """Widths of all outputs: the last layer's first, then those of ``ExtraOutput`` in order."""
    width = case.input.features
    extra = []
    for layer in case.layers:
        if isinstance(layer, ExtraOutput):
            extra.append(width)
        width = output_width((layer,), width)
    return [width, *extra]


def receives_gradient(case: Case, output: int) -> bool:
    """Whether a gradient comes back through an output: always through the last layer's, by choice through others."""
    extra = [layer for layer in case.layers if isinstance(layer, ExtraOutput)]
    return output == 0 or extra[output - 1].gradient


def dropout_seed(case: Case, index: int) -> int:
    """torch's seed before the forward of step ``index``: every subject draws the same random numbers."""
    return zlib.crc32(f"{case.seed} dropout {index}".encode())


def drops(case: Case, index: int) -> bool:
    """Whether dropout is active in step ``index``: a module in evaluation mode does without, a function cannot know."""
    return not (case.jit is not None and case.jit.entry == "module" and case.steps[index].mode == "eval")


def laid_out(tensor: Tensor, layout: Layout) -> Tensor:
    """The same values in another memory layout. ``tensor`` is contiguous, of shape [*batch, features]."""
    match layout:
        case "transposed" if tensor.ndim > 1:
            return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "strided":
            return tensor.repeat_interleave(2, dim=-1)[..., ::2]
        case _:
            return tensor


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


def make_parameters(case: Case, index: int | None = None) -> dict[str, Tensor]:
    """All parameters by name (``0.weight``, ``1.0.bias``...), on the CPU, in the dtype in which their layer computes.

    ``index`` gives the values that step ``index`` loads instead of the initial ones.
    """
    purpose = "parameter" if index is None else f"step {index} parameter"
    return {
        name: (
            torch.randn(form.shape, generator=_generator(case.seed, f"{purpose} {name}"), dtype=torch.float32)
            * form.scale
            + form.centre
        ).to(DTYPES[form.dtype])
        for name, form in _parameter_forms(case)
    }


def trainable_parameters(case: Case, index: int | None = None) -> set[str]:
    """Names of the parameters that need a gradient, in step ``index`` or at all."""
    names = [name for name, _ in _parameter_forms(case)]
    trainable = set(names) - frozen_parameters(case.layers)
    match "all" if index is None else case.steps[index].trainable:
        case "all":
            return trainable
        case "last_layer":
            last = names[-1].rpartition(".")[0] if names else ""
            return {name for name in trainable if name.rpartition(".")[0] == last}
        case "biases":
            return {name for name in trainable if name.endswith(".bias")}
        case _:
            return set()


def frozen_parameters(layers: tuple[AnyLayer, ...]) -> set[str]:
    """Names of the parameters that need no gradient."""
    return {f"{path}.{name}" for path, layer in walk(layers) for name in getattr(layer, "frozen", ())}


@dataclass(frozen=True, slots=True)
class _Form:
    """How a parameter is drawn: normal values times ``scale`` plus ``centre``."""

    shape: tuple[int, ...]
    scale: float
    dtype: Dtype
    centre: float = 0.0


def _parameter_forms(case: Case) -> Iterator[tuple[str, _Form]]:
    for path, layer, width, dtype in executed(case.layers, case.input.features, case.input.dtype):
        assert dtype is not None
        match layer:
            case Linear() if layer.parameters == "own":
                yield f"{path}.weight", _Form((layer.out_features, width), 1 / math.sqrt(width), dtype)
                if layer.bias:
                    yield f"{path}.bias", _Form((layer.out_features,), 0.5, dtype)
            case LayerNorm() | RMSNorm():
                # Not all ones: a scale that is dropped or used twice must show.
                yield f"{path}.weight", _Form((width,), 0.25, dtype, 0.0 if layer.zero_centered_gamma else 1.0)
                if isinstance(layer, LayerNorm):
                    yield f"{path}.bias", _Form((width,), 0.25, dtype)


def _generator(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose: adding a layer does not change the values of the others."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {purpose}".encode()))


def parameter_names(layer: AnyLayer) -> tuple[str, ...]:
    """Names of the parameters that the layer itself uses; a linear may share another one's."""
    match layer:
        case Linear():
            return ("weight", "bias") if layer.bias else ("weight",)
        case LayerNorm():
            return ("weight", "bias")
        case RMSNorm():
            return ("weight",)
        case _:
            return ()


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the state of torch's random numbers back: what is drawn inside must not change the dropout of a case."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
