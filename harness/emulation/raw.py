"""Writing buffers the way a kernel does: autograd does not notice, inference tensors are allowed."""

from __future__ import annotations

import torch


def write(destination: torch.Tensor, value: torch.Tensor) -> None:
    """Copy ``value`` into ``destination`` (same shape or broadcastable; cast to its dtype)."""
    if destination.is_inference():
        # Outside inference mode torch refuses in-place updates of inference tensors; a kernel does not.
        with torch.inference_mode():
            destination.copy_(value)
        return
    with torch.autograd._unsafe_preserve_version_counter(destination):
        destination.copy_(value)


def bits(data: torch.Tensor) -> torch.Tensor:
    """The bytes of an FP8 tensor, as TE stores them."""
    return data.view(torch.uint8)
