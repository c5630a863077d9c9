"""Activations of one input and their backward passes.

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

_ACTIVATIONS: dict[str, tuple[Pointwise, Pointwise]] = {
    "relu": (pointwise.relu, pointwise.drelu),
    "gelu": (pointwise.gelu, pointwise.dgelu),
    "silu": (pointwise.silu, pointwise.dsilu),
    "qgelu": (pointwise.qgelu, pointwise.dqgelu),
    "srelu": (pointwise.srelu, pointwise.dsrelu),
}


def _register(name: str, function: Pointwise, derivative: Pointwise) -> None:
    def forward(input: torch.Tensor, quantizer: Any) -> Any:
        return finish(function(input.contiguous().float()), input.dtype, quantizer)

    def gradient(grad: torch.Tensor, fwd_input: torch.Tensor) -> torch.Tensor:
        return grad.contiguous().float() * derivative(fwd_input.contiguous().float())

    def backward(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any) -> Any:
        return finish(gradient(grad, fwd_input), fwd_input.dtype, quantizer)

    def backward_with_bias(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any) -> list[Any]:
        dx = gradient(grad, fwd_input)
        summed = dx if _sums_unrounded(quantizer) else dx.to(grad.dtype)
        bias_grad = summed.reshape(-1, dx.shape[-1]).sum(0, dtype=torch.float32).to(grad.dtype)
        return [bias_grad, finish(dx, grad.dtype, quantizer)]

    for emulated, its_name in ((forward, name), (backward, f"d{name}"), (backward_with_bias, f"dbias_d{name}")):
        emulated.__name__ = its_name
        tex_function(emulated)


def _sums_unrounded(quantizer: Any) -> bool:
    """Delayed scaling and MXFP8 have kernels that sum the bias gradient before any rounding."""
    return quantizer is not None and families.of_quantizer(quantizer).fuses_bias_grad


for _name, _functions in _ACTIVATIONS.items():
    _register(_name, *_functions)
