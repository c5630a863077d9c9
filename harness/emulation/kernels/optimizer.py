"""Optimizer steps over lists of tensors: Adam and its variants, SGD.

All arithmetic is fp32; tensors are updated in place. Sources: common/multi_tensor/adam.cu and sgd.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.emulation import raw
from harness.emulation.formats import fp8
from harness.emulation.kernels.registry import tex_function

Lists = Sequence[Sequence[torch.Tensor]]

_L2 = 0


@dataclass(frozen=True)
class _Adam:
    """Parameters of one Adam step, corrections of the two moments included."""

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    mode: int
    decay: float
    correction1: float = 1.0
    correction2: float = 1.0

    def corrected(self, step: int, bias_correction: int) -> _Adam:
        """With the bias corrections of ``step``."""
        if not bias_correction:
            return self
        correction1, correction2 = 1.0 - self.beta1**step, 1.0 - self.beta2**step
        return _Adam(self.lr, self.beta1, self.beta2, self.epsilon, self.mode, self.decay, correction1, correction2)

    def update(self, grad: torch.Tensor, parameter: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The new fp32 parameter; writes the moments. ``mode`` 0 adds the decay to the gradient, 1 to the update."""
        value = parameter.float()
        if self.mode == _L2:
            grad = grad + self.decay * value
        first = self.beta1 * m.float() + (1.0 - self.beta1) * grad
        second = self.beta2 * v.float() + (1.0 - self.beta2) * grad * grad
        raw.write(m, first)
        raw.write(v, second)
        update = (first / self.correction1) / (torch.sqrt(second / self.correction2) + self.epsilon)
        if self.mode != _L2:
            update = update + self.decay * value
        return value - self.lr * update


@tex_function
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Lists: gradients, parameters, first moments, second moments [, fp32 master parameters]."""
    adam = _Adam(lr, beta1, beta2, epsilon, mode, weight_decay).corrected(step, bias_correction)
    for grad, parameter, m, v, *master in zip(*tensor_lists, strict=True):
        new = adam.update(grad.float(), master[0] if master else parameter, m, v)
        for target in (parameter, *master):
            raw.write(target, new)


@tex_function
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """bf16 parameters whose fp32 masters are kept as the lower 16 bits (last list, int16)."""
    adam = _Adam(lr, beta1, beta2, epsilon, mode, weight_decay).corrected(step, bias_correction)
    for grad, parameter, m, v, remainder in zip(*tensor_lists, strict=True):
        new = adam.update(grad.float(), _join_halves(parameter, remainder), m, v)
        upper, lower = _split_halves(new)
        raw.write(parameter, upper)
        raw.write(remainder, lower)


@tex_function
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    fp8_dtype: int,
) -> None:
    """Lists: gradients, FP8 bytes, moments, masters, scales, amaxes, inverse scales."""
    adam = _Adam(lr, beta1, beta2, epsilon, mode, weight_decay).corrected(step, bias_correction)
    for grad, codes, m, v, master, scale, amax, scale_inv in zip(*tensor_lists, strict=True):
        new = adam.update(grad.float(), master, m, v)
        raw.write(master, new)
        raw.write(codes.view(torch.uint8), fp8.cast(new, scale.reshape(()), fp8_dtype))
        raw.write(amax, torch.maximum(amax, fp8.amax(new).reshape(amax.shape)))
        raw.write(scale_inv, torch.reciprocal(scale))


@tex_function
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """Adam whose rate, step and gradient scale are tensors; does nothing when the flag is set.

    Unscaled gradients are written back.
    """
    if noop_flag.item() == 1:
        return
    adam = _Adam(lr.item(), beta1, beta2, epsilon, mode, weight_decay).corrected(int(step.item()), bias_correction)
    for grad, parameter, m, v, *master in zip(*tensor_lists, strict=True):
        unscaled = grad.float() * inv_scale.float()
        raw.write(grad, unscaled)
        new = adam.update(unscaled, master[0] if master else parameter, m, v)
        for target in (parameter, *master):
            raw.write(target, new)


@tex_function
def multi_tensor_adam_capturable_master(*args: object) -> None:
    """``multi_tensor_adam_capturable`` with a fifth list of fp32 master parameters."""
    multi_tensor_adam_capturable(*args)  # type: ignore[arg-type]


@tex_function
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """Lists: gradients, weights, momenta [, fp16 copies of the weights]; nothing when the flag is set."""
    if noop_flag.item():
        return
    for grad, weight, velocity, *copies in zip(*tensor_lists, strict=True):
        step, value = grad.float() * scale, weight.float()
        if wd != 0.0 and not wd_after_momentum:
            step = step + wd * value
        if momentum != 0.0:
            moved = step if first_run else velocity.float() * momentum + (1.0 - dampening) * step
            step = step + momentum * moved if nesterov else moved
            raw.write(velocity, moved)
        if wd != 0.0 and wd_after_momentum:
            step = step + wd * value
        raw.write(weight, value - lr * step)
        for copy in copies:
            raw.write(copy, weight)


def _join_halves(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """fp32 from a bf16 that was rounded to nearest and the 16 bits that rounding took away."""
    high = upper.view(torch.int16).int()
    low = lower.view(torch.int16).int()
    high = torch.where(low < 0, high - 1, high)  # undo the rounding up
    return ((high << 16) | (low & 0xFFFF)).view(torch.float32)


def _split_halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of ``_join_halves``."""
    bits = value.contiguous().view(torch.int32)
    low = (bits & 0xFFFF).to(torch.int16)
    high = (bits >> 16) + (low < 0)
    return high.to(torch.int16).view(torch.bfloat16), low
