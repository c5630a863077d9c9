"""Gated activations: the last dimension holds an activated and a gating half, the result their product.

``scaled_*`` (after 2.9) also multiply each row by a scale and can read halves that alternate in chunks.
Sources: common/util/math.h; common/activation/scaled_activation.cu; pytorch/csrc/extensions/activation.cpp.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.emulation.kernels import pointwise
from harness.emulation.kernels.pointwise import Pointwise
from harness.emulation.kernels.quantize import finish
from harness.emulation.kernels.registry import tex_function


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


@dataclass(frozen=True)
class Gate:
    """``act(first) * up(second)`` and the derivatives of both functions, on fp32 tensors."""

    act: Pointwise
    dact: Pointwise
    up: Pointwise = _identity
    dup: Pointwise = torch.ones_like

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """The product."""
        return self.act(first) * self.up(second)

    def backward(
        self, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of both halves."""
        return self.dact(first) * grad * self.up(second), grad * self.act(first) * self.dup(second)


_SWIGLU = Gate(pointwise.silu, pointwise.dsilu)
_PLAIN: dict[str, Gate] = {
    "glu": Gate(pointwise.sigmoid, pointwise.dsigmoid),
    "reglu": Gate(pointwise.relu, pointwise.drelu),
    "geglu": Gate(pointwise.gelu, pointwise.dgelu),
    "swiglu": _SWIGLU,
    "qgeglu": Gate(pointwise.qgelu, pointwise.dqgelu),
    "sreglu": Gate(pointwise.srelu, pointwise.dsrelu),
}


def clamped_gate(limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0) -> Gate:
    """``a * sigmoid(alpha a) * b`` with ``a`` at most ``limit`` and ``b`` clamped to it plus an offset."""
    return Gate(
        act=lambda x: pointwise.qgelu(x.clamp(max=limit), alpha),
        dact=lambda x: torch.where(x <= limit, pointwise.dqgelu(x.clamp(max=limit), alpha), 0.0),
        up=lambda x: x.clamp(-limit, limit) + glu_linear_offset,
        dup=lambda x: ((x >= -limit) & (x <= limit)).float(),
    )


def situ_gate(beta1: float = 4.0, beta2: float = 25.0) -> Gate:
    """``beta1 tanh(a / beta1) sigmoid(a) * beta2 tanh(b / beta2)``."""

    def dact(x: torch.Tensor) -> torch.Tensor:
        tanh, sigmoid = torch.tanh(x / beta1), torch.sigmoid(x)
        return (1.0 - tanh * tanh) * sigmoid + beta1 * tanh * sigmoid * (1.0 - sigmoid)

    def dup(x: torch.Tensor) -> torch.Tensor:
        tanh = torch.tanh(x / beta2)
        return 1.0 - tanh * tanh

    return Gate(
        act=lambda x: beta1 * torch.tanh(x / beta1) * torch.sigmoid(x),
        dact=dact,
        up=lambda x: beta2 * torch.tanh(x / beta2),
        dup=dup,
    )


def _split(x: torch.Tensor, interleave: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activated and gating half in fp32; with ``interleave`` n, chunks of n elements alternate."""
    wide = x.contiguous().float()
    if interleave:
        wide = wide.unflatten(-1, (-1, 2, interleave)).transpose(-3, -2).flatten(-3)
    first, second = wide.chunk(2, dim=-1)
    return first, second


def _join(first: torch.Tensor, second: torch.Tensor, interleave: int) -> torch.Tensor:
    """The inverse of ``_split``."""
    if not interleave:
        return torch.cat([first, second], dim=-1)
    chunks = [half.unflatten(-1, (-1, interleave)) for half in (first, second)]
    return torch.stack(chunks, dim=-2).flatten(-3)


def _register(name: str, make: Callable[..., Gate]) -> None:
    """``name`` and its backward; both take the parameters of ``make`` after the quantizer."""
    backward_name = name.replace("clamped_", "clamped_d") if name.startswith("clamped_") else f"d{name}"

    def forward(input: torch.Tensor, quantizer: Any, *args: float, **kwargs: float) -> Any:
        return finish(make(*args, **kwargs).forward(*_split(input, 0)), input.dtype, quantizer)

    def backward(grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any, *args: float, **kwargs: float) -> Any:
        halves = make(*args, **kwargs).backward(grad.contiguous().float(), *_split(fwd_input, 0))
        return finish(_join(*halves, 0), fwd_input.dtype, quantizer)

    for emulated, its_name in ((forward, name), (backward, backward_name)):
        emulated.__name__ = its_name
        tex_function(emulated)


def _register_scaled(name: str, backward_name: str, make: Callable[..., Gate]) -> None:
    """The forms with one scale per row: ``y`` and ``(dx, gradient of the scales or None)``."""
    parameters = list(inspect.signature(make).parameters)

    def gate_and_interleave(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Gate, int]:
        options.update(zip([*parameters, "glu_interleave_size"], args, strict=False))
        interleave = int(options.pop("glu_interleave_size", 0))
        return make(**options), interleave

    def forward(input: torch.Tensor, act_scales: torch.Tensor, quantizer: Any, *args: Any, **options: Any) -> Any:
        gate, interleave = gate_and_interleave(args, options)
        result = gate.forward(*_split(input, interleave)) * _per_row(act_scales, input)
        return _quantize_rounded(result, input.dtype, quantizer)

    def backward(
        grad: torch.Tensor,
        fwd_input: torch.Tensor,
        act_scales: torch.Tensor,
        quantizer: Any,
        *args: Any,
        compute_scale_grad: bool = True,
        **options: Any,
    ) -> tuple[Any, torch.Tensor | None]:
        gate, interleave = gate_and_interleave(args, options)
        halves = _split(fwd_input, interleave)
        wide = grad.contiguous().float()
        dx = _join(*gate.backward(wide * _per_row(act_scales, fwd_input), *halves), interleave)
        scale_grad = _scale_grad(wide, gate.forward(*halves), act_scales) if compute_scale_grad else None
        return _quantize_rounded(dx, fwd_input.dtype, quantizer), scale_grad

    for emulated, its_name in ((forward, name), (backward, backward_name)):
        emulated.__name__ = its_name
        tex_function(emulated)


@tex_function
def scaled_srelu(input: torch.Tensor, act_scales: torch.Tensor, quantizer: Any) -> Any:
    """Squared ReLU, each row times its scale."""
    result = pointwise.srelu(input.contiguous().float()) * _per_row(act_scales, input)
    return _quantize_rounded(result, input.dtype, quantizer)


@tex_function
def scaled_dsrelu(
    grad: torch.Tensor,
    fwd_input: torch.Tensor,
    act_scales: torch.Tensor,
    quantizer: Any,
    compute_scale_grad: bool = True,
) -> tuple[Any, torch.Tensor | None]:
    """Gradient of ``scaled_srelu`` and of its scales."""
    x, wide = fwd_input.contiguous().float(), grad.contiguous().float()
    dx = wide * _per_row(act_scales, fwd_input) * pointwise.dsrelu(x)
    scale_grad = _scale_grad(wide, pointwise.srelu(x), act_scales) if compute_scale_grad else None
    return _quantize_rounded(dx, fwd_input.dtype, quantizer), scale_grad


def _per_row(scales: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    rows = input.numel() // input.shape[-1]
    if scales.numel() != rows:
        raise RuntimeError(f"scaled activation expects one scale per input row ({rows}), got {scales.numel()}")
    return scales.float().reshape(*input.shape[:-1], 1)


def _scale_grad(grad: torch.Tensor, unscaled: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (grad * unscaled).sum(-1).reshape(scales.shape).to(scales.dtype)


def _quantize_rounded(result: torch.Tensor, dtype: torch.dtype, quantizer: Any) -> Any:
    """These kernels are not fused with any cast: the result is rounded to ``dtype`` first."""
    return finish(result.to(dtype), dtype, quantizer, amax_of_rounded=True)


for _name, _gate in _PLAIN.items():
    _register(_name, lambda gate=_gate: gate)
_register("clamped_swiglu", clamped_gate)
_register("situglu", situ_gate)
_register_scaled("scaled_swiglu", "scaled_dswiglu", lambda: _SWIGLU)
_register_scaled("scaled_clamped_swiglu", "scaled_clamped_dswiglu", clamped_gate)
_register_scaled("scaled_situglu", "scaled_dsituglu", situ_gate)
