"""Activations, gated activations and their backward passes.

``f(input, quantizer)`` and ``df(grad, fwd_input, quantizer)``; ``dbias_df`` also returns the bias gradient.
Sources: pytorch/csrc/extensions/activation.cpp and bias.cpp; common/util/vectorized_pointwise.h.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import families
from harness.emulation.kernels import pointwise
from harness.emulation.kernels.pointwise import Pointwise
from harness.emulation.kernels.quantize import finish
from harness.emulation.kernels.registry import tex_function

_PLAIN: dict[str, tuple[Pointwise, Pointwise]] = {
    "relu": (pointwise.relu, pointwise.drelu),
    "gelu": (pointwise.gelu, pointwise.dgelu),
    "silu": (pointwise.silu, pointwise.dsilu),
    "qgelu": (pointwise.qgelu, pointwise.dqgelu),
    "srelu": (pointwise.srelu, pointwise.dsrelu),
}
_GATED: dict[str, tuple[Pointwise, Pointwise]] = {
    "reglu": _PLAIN["relu"],
    "geglu": _PLAIN["gelu"],
    "swiglu": _PLAIN["silu"],
    "qgeglu": _PLAIN["qgelu"],
    "sreglu": _PLAIN["srelu"],
    "glu": (pointwise.sigmoid, pointwise.dsigmoid),
}


def gated(x: torch.Tensor, function: Pointwise) -> torch.Tensor:
    """``function(first half) * second half`` along the last dimension."""
    first, gate = x.float().chunk(2, dim=-1)
    return function(first) * gate


def gated_backward(grad: torch.Tensor, x: torch.Tensor, function: Pointwise, derivative: Pointwise) -> torch.Tensor:
    """Gradient of ``gated`` with respect to ``x``."""
    first, gate = x.float().chunk(2, dim=-1)
    wide = grad.float()
    return torch.cat([derivative(first) * wide * gate, wide * function(first)], dim=-1)


def _register_plain(name: str, function: Pointwise, derivative: Pointwise) -> None:
    def forward(input: torch.Tensor, quantizer: Any) -> Any:
        return finish(function(input.contiguous().float()), input.dtype, quantizer)

    def backward(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any) -> Any:
        dx = grad.contiguous().float() * derivative(fwd_input.contiguous().float())
        return finish(dx, fwd_input.dtype, quantizer)

    def backward_with_bias(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any) -> list[Any]:
        dx = grad.contiguous().float() * derivative(fwd_input.contiguous().float())
        summed = dx if _sums_unrounded(quantizer) else dx.to(grad.dtype)
        bias_grad = summed.reshape(-1, dx.shape[-1]).sum(0, dtype=torch.float32).to(grad.dtype)
        return [bias_grad, finish(dx, grad.dtype, quantizer)]

    _register(name, forward)
    _register(f"d{name}", backward)
    _register(f"dbias_d{name}", backward_with_bias)


def _register_gated(name: str, function: Pointwise, derivative: Pointwise) -> None:
    def forward(input: torch.Tensor, quantizer: Any) -> Any:
        return finish(gated(input, function), input.dtype, quantizer)

    def backward(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any) -> Any:
        return finish(gated_backward(grad, fwd_input, function, derivative), fwd_input.dtype, quantizer)

    _register(name, forward)
    _register(f"d{name}", backward)


def _register(name: str, function: Any) -> None:
    function.__name__ = name
    tex_function(function)


def _sums_unrounded(quantizer: Any) -> bool:
    """Delayed scaling and MXFP8 have kernels that sum the bias gradient before any rounding."""
    return quantizer is not None and families.of_quantizer(quantizer).fuses_bias_grad


for _name, _functions in _PLAIN.items():
    _register_plain(_name, *_functions)
for _name, _functions in _GATED.items():
    _register_gated(_name, *_functions)


@tex_function
def clamped_swiglu(
    input: torch.Tensor,
    quantizer: Any,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:
    """``a * sigmoid(alpha * a) * (b + offset)`` with ``a = min(first half, limit)``, ``b = clamp(second half)``."""
    first, gate = _clamped(input, limit, glu_linear_offset)
    return finish(pointwise.qgelu(first, alpha) * gate, input.dtype, quantizer)


@tex_function
def clamped_dswiglu(
    grad: torch.Tensor,
    fwd_input: torch.Tensor,
    quantizer: Any,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:
    """Gradient of ``clamped_swiglu``; zero outside the limits."""
    first, gate = _clamped(fwd_input, limit, glu_linear_offset)
    raw_first, raw_gate = fwd_input.float().chunk(2, dim=-1)
    wide = grad.float()
    d_first = torch.where(raw_first <= limit, pointwise.dqgelu(first, alpha), 0.0) * wide * gate
    inside = (raw_gate >= -limit) & (raw_gate <= limit)
    d_gate = torch.where(inside, wide * pointwise.qgelu(first, alpha), 0.0)
    return finish(torch.cat([d_first, d_gate], dim=-1), fwd_input.dtype, quantizer)


def _clamped(x: torch.Tensor, limit: float, offset: float) -> tuple[torch.Tensor, torch.Tensor]:
    first, gate = x.float().chunk(2, dim=-1)
    return first.clamp(max=limit), gate.clamp(-limit, limit) + offset
