"""LayerNorm and RMSNorm.

Statistics and arithmetic are fp32, the result is rounded once. Sources: pytorch/csrc/extensions/normalization.cpp;
common/normalization/*.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.emulation import families, raw, settings, storage
from harness.emulation.dtypes import torch_dtype
from harness.emulation.kernels.quantize import finish
from harness.emulation.kernels.registry import tex_function


@tex_function
def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """``[output, mean, 1 / standard deviation]``; the statistics are fp32[rows]."""
    x = _rows(input)
    mean = x.mean(1, keepdim=True)
    centered = x - mean
    rsigma = torch.rsqrt(centered.square().mean(1, keepdim=True) + eps)
    y = _gamma(weight, zero_centered_gamma) * (centered * rsigma)
    if bias is not None:
        y = y + bias.float()
    output = _output(y.view(input.shape), torch_dtype(otype), quantizer, ln_out)
    return [output, mean.flatten(), rsigma.flatten()]


@tex_function
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """``[output, None, 1 / root mean square]``."""
    x = _rows(input)
    rsigma = torch.rsqrt(x.square().mean(1, keepdim=True) + eps)
    y = _gamma(weight, zero_centered_gamma) * (x * rsigma)
    output = _output(y.view(input.shape), torch_dtype(otype), quantizer, ln_out)
    return [output, None, rsigma.flatten()]


@tex_function
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """``[dx, dgamma, dbeta]``."""
    grad = _rows(dz)
    scale = rsigma.view(-1, 1)
    y = (_rows(x) - mu.view(-1, 1)) * scale
    dy = _gamma(gamma, zero_centered_gamma) * grad
    dx = scale * (dy - ((dy * y).mean(1, keepdim=True) * y + dy.mean(1, keepdim=True)))
    dgamma, dbeta = (grad * y).sum(0), grad.sum(0)
    return [dx.to(x.dtype).view(x.shape), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)]


@tex_function
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """``[dx, dgamma]``."""
    dx, dgamma = _rmsnorm_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return [dx.to(x.dtype).view(x.shape), dgamma.to(gamma.dtype)]


@tex_function
def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """``[dx + add, dgamma]``; the sum is rounded once."""
    dx, dgamma = _rmsnorm_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return [(dx + _rows(add)).to(x.dtype).view(x.shape), dgamma.to(gamma.dtype)]


def _rmsnorm_gradients(
    dz: torch.Tensor, x: torch.Tensor, rsigma: torch.Tensor, gamma: torch.Tensor, zero_centered: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    grad = _rows(dz)
    scale = rsigma.view(-1, 1)
    y = _rows(x) * scale
    dy = _gamma(gamma, zero_centered) * grad
    dx = scale * (dy - (dy * y).mean(1, keepdim=True) * y)
    return dx, (grad * y).sum(0)


def _rows(tensor: Any) -> torch.Tensor:
    """fp32 matrix of the tensor's rows; quantized inputs are decoded, as the kernels take them."""
    if families.is_quantized(tensor):
        tensor = families.of_tensor(tensor).decode(tensor)
    return tensor.reshape(-1, tensor.shape[-1]).float()


def _gamma(weight: Any, zero_centered: bool) -> torch.Tensor:
    gamma = families.of_tensor(weight).decode(weight) if families.is_quantized(weight) else weight.float()
    return gamma + 1.0 if zero_centered else gamma


def _output(y: torch.Tensor, dtype: torch.dtype, quantizer: Any, out: Any) -> Any:
    result = finish(y, dtype, quantizer, amax_of_rounded=settings.current().facts.norm_amax_of_rounded)
    if out is None:
        return result
    if quantizer is None:
        raw.write(out, result)
    else:
        storage.update(out, quantizer, y.shape, storage.buffers_of(result))
    return out
