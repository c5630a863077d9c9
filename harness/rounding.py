"""Bounds for cases in which both sides may round differently: Monte Carlo arithmetic around a float64 run.

The case's program runs in float64, split into primitive operations, several times: once as it is, and a few times with
the result of every operation (and the operands of every reduction) multiplied by 1 + u d, where u is the unit roundoff
of the case's dtype and d is uniform in [-1, 1]. Each noisy run is a stand-in for one legitimate order and place of
rounding; their largest distance from the clean run, row by row, is what rounding can do to this very case
(D. S. Parker, "Monte Carlo Arithmetic", 1997). ``SAFETY`` times that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from harness import build
from harness.build import frozen_parameters, make_input, make_output_gradient, make_parameters
from harness.case import (
    GATED_BY,
    Activation,
    ActivationFunction,
    AnyLayer,
    Case,
    Checkpoint,
    GatedActivation,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
)
from harness.compare import Bounded

NOISY_RUNS = 8
"""With 4, the bound of a row whose values nearly cancel was 6% too small in one of some thousand cases
(corpus/regressions/rounding-bound-of-a-row.json)."""
SAFETY = 8.0
"""Rounding may go the same way in many elements, where independent noise averages out, and a JIT may round several
times inside one of our primitives. The largest ratio seen over the released versions is in docs/oracles.md."""

LARGEST_EXPONENT = 700.0
"""exp of 710 overflows in float64."""
REDUCTIONS = {"mm", "addmm", "bmm", "sum", "mean"}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
TF32_ROUNDOFF = 2.0**-11


class MonteCarloArithmetic(TorchDispatchMode):  # type: ignore[misc]  # torch is Any
    """Perturbs what every operation computes by a random relative error of up to ``unit_roundoff``."""

    def __init__(self, unit_roundoff: float, seed: int) -> None:
        super().__init__()
        self._unit_roundoff = unit_roundoff
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in REDUCTIONS:
            args = tuple(self._perturbed(arg) for arg in args)
        result = func(*args, **(kwargs or {}))
        # An alias of an argument was not computed.
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        if isinstance(result, tuple | list):
            return type(result)(self._perturbed(item) for item in result)
        return self._perturbed(result)

    def _perturbed(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=self._generator, dtype=value.dtype)
        return value * (1 + self._unit_roundoff * (2 * noise - 1))


class OverflowsError(ArithmeticError):
    """The case's values leave the range of its dtype, where float64 says nothing about the right result."""

    def __init__(self, dtype: str, largest: float) -> None:
        super().__init__(f"values up to {largest:.1e} may overflow {dtype}")
        self.dtype = dtype


def bounds(case: Case, unit_roundoff: float | None = None) -> Bounded:
    """What outputs and gradients of every step may be, whatever the order and place of rounding.

    ``unit_roundoff`` is that of the case's dtype unless it is given.
    Raises ``OverflowsError`` for a case whose values may overflow, depending on that order.
    """
    clean = _run(case)
    allowed = {key: torch.zeros_like(value) for key, value in clean.items()}
    unit_roundoff = unit_roundoff or UNIT_ROUNDOFF[case.input.dtype]
    for run in range(NOISY_RUNS):
        with MonteCarloArithmetic(unit_roundoff, seed=run):
            noisy = _run(case)
        for key, value in noisy.items():
            allowed[key] = torch.maximum(allowed[key], _row_maximum((value - clean[key]).abs()))
    quantum = _quantum(case)
    allowed = {key: SAFETY * value + quantum for key, value in allowed.items()}
    reason = f"{SAFETY:g} times the spread of {NOISY_RUNS} runs with random {case.input.dtype} rounding"
    return Bounded(clean, allowed, reason)


def _quantum(case: Case) -> float:
    """An absolute error below which relative ones mean nothing.

    With the exponents of float32, exp overflows for values beyond 88 and a sigmoid becomes exactly 0 where it should be
    about 1 / max, the smallest normal number; times the values around it that is still far below any result of
    interest. With those of float16 it is the spacing of subnormal numbers.
    """
    info = torch.finfo(build.DTYPES[case.input.dtype])
    return float(info.smallest_normal) * (info.eps if case.input.dtype == "float16" else 2.0**16)


def _row_maximum(error: Tensor) -> Tensor:
    """The largest error of each row: rows may differ in magnitude by far."""
    return error.amax(dim=-1, keepdim=True).expand_as(error) if error.ndim else error


def _run(case: Case) -> dict[str, Tensor]:
    frozen = frozen_parameters(case.layers)
    parameters = {
        name: value.double().requires_grad_(name not in frozen) for name, value in make_parameters(case).items()
    }
    observed: dict[str, Tensor] = {}
    for index, step in enumerate(case.steps):
        train = step.mode == "train"
        x = make_input(case, index).double().requires_grad_(train and case.input.requires_grad)
        for parameter in parameters.values():
            parameter.grad = None
        with torch.set_grad_enabled(train):
            output = run_primitives(case.layers, parameters, x, check=_range_check(case.input.dtype))
        observed[f"{index} output"] = output.detach()
        if case.jit is not None and case.jit.entry == "grad":
            output.backward(torch.ones_like(output))
        elif train and output.requires_grad:
            output.backward(make_output_gradient(case, index).double())
        for name, leaf in {"input": x, **parameters}.items():
            if leaf.grad is not None:
                observed[f"{index} gradient {name}"] = leaf.grad.detach()
    return observed


def _accept(x: Tensor) -> None:
    """The check of a caller that does not mind large values."""


def run_primitives(
    layers: tuple[AnyLayer, ...],
    parameters: Mapping[str, Tensor],
    x: Tensor,
    prefix: str = "",
    check: Callable[[Tensor], None] = _accept,
) -> Tensor:
    """The layers, each split into primitive operations as a compiler may split it: the places where it may round.

    ``check`` sees what every layer gives.
    """
    for index, layer in enumerate(layers):
        path = f"{prefix}{index}."
        own = [parameters[path + name] for name in build.parameter_names(layer)]
        match layer:
            case Residual():
                x = x + run_primitives(layer.body, parameters, x.clone(), path, check)
            case Checkpoint():
                x = run_primitives(layer.body, parameters, x, path, check)
            case Linear():
                x = F.linear(x, *own)
            case LayerNorm():
                x = _layer_norm(layer.eps, layer.zero_centered_gamma, x, *own)
            case RMSNorm():
                x = _rms_norm(layer.eps, layer.zero_centered_gamma, x, *own)
            case Activation():
                x = PRIMITIVE_ACTIVATIONS[layer.function](x)
            case GatedActivation():
                gate, value = torch.chunk(x, 2, dim=-1)
                x = PRIMITIVE_ACTIVATIONS[GATED_BY[layer.function]](gate) * value
        check(x)
    return x


def _range_check(dtype: str) -> Callable[[Tensor], None]:
    """Refuse values whose cube, which the gradient of a norm holds, comes near the end of the range of ``dtype``."""
    limit = torch.finfo(build.DTYPES[dtype]).max ** 0.25

    def check(x: Tensor) -> None:
        if x.numel() and (largest := float(x.detach().abs().max())) > limit:
            raise OverflowsError(dtype, largest)

    return check


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
