"""Scaling, norms and FP8 scales over lists of tensors.

Sources: common/multi_tensor/scale.cu, l2norm.cu, compute_scale.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.emulation import raw
from harness.emulation.enums import DType
from harness.emulation.formats import e8m0, fp8
from harness.emulation.kernels.registry import tex_function

Lists = Sequence[Sequence[torch.Tensor]]


@tex_function
def multi_tensor_scale(chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, scale: float) -> None:
    """Second list = first list * scale; the flag is set when an input is not finite."""
    for source, target in zip(*tensor_lists, strict=True):
        values = source.float()
        if not torch.isfinite(values).all():
            raw.write(noop_flag, torch.ones_like(noop_flag))
        raw.write(target, values * scale)


@tex_function
def multi_tensor_scale_tensor(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, scale: torch.Tensor
) -> None:
    """``multi_tensor_scale`` with the scale in a tensor."""
    multi_tensor_scale(chunk_size, noop_flag, tensor_lists, scale.float().item())


@tex_function
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, per_tensor: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32[1] norm over all tensors, and fp32[n] norms of each if asked for (else fp32[0])."""
    return _norms(noop_flag, tensor_lists[0], torch.ones(1), bool(per_tensor))


@tex_function
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    inv_scale: torch.Tensor,
    per_tensor: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``multi_tensor_l2norm`` of the tensors times ``inv_scale``; the tensors stay as they are."""
    return _norms(noop_flag, tensor_lists[0], inv_scale.float(), bool(per_tensor))


def _norms(
    noop_flag: torch.Tensor, tensors: Sequence[torch.Tensor], factor: torch.Tensor, per_tensor: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    squares = torch.stack([(tensor.float() * factor).square().sum() for tensor in tensors])
    if not torch.isfinite(squares).all():
        raw.write(noop_flag, torch.ones_like(noop_flag))
    each = squares.sqrt() if per_tensor else torch.empty(0)
    return squares.sum().sqrt().reshape(1), each


@tex_function
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    """Lists: amaxes, scales, inverse scales (all fp32); the last two are written."""
    for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
        value = fp8.scale_from_amax(amax, max_fp8, force_pow_2=force_pow_2_scales, epsilon=epsilon)
        raw.write(scale, value)
        raw.write(scale_inv, torch.reciprocal(value))


@tex_function
def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, tensor_lists: Lists, *unused: object) -> None:
    """Lists: bf16 amaxes and E8M0 exponents; the latter are written for E4M3 data."""
    for amax, exponents in zip(*tensor_lists, strict=True):
        raw.write(exponents, e8m0.from_amax(amax.float(), DType.kFloat8E4M3))
