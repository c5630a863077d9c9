"""What every family offers to the kernels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from harness.emulation import storage


@dataclass(frozen=True)
class Operand:
    """One side of a matrix product.

    ``matrix`` is fp32, two-dimensional, in the logical orientation of the tensor (leading dimensions flattened);
    the value meant is ``matrix * factor / divisor``. ``kind`` names the scaling scheme: both sides must agree on it.
    """

    matrix: torch.Tensor
    factor: torch.Tensor | None
    kind: str
    divisor: float = 1.0
    two_dimensional: bool = False
    """The scales belong to square blocks."""


class Family(ABC):
    """Encodes and decodes one kind of quantized tensor."""

    kind: str
    """Name of the scaling scheme; the two sides of a product must agree on it."""

    is_fp8 = True
    """Elements are FP8; decides the dtype in which a product returns the input of GELU."""

    fuses_bias_grad = False
    """Activation backward kernels sum the bias gradient from the unrounded fp32 gradient."""

    takes_unrounded = False
    """A fused kernel quantizes its fp32 result directly; otherwise the result is rounded to the tensor dtype first."""

    takes_amax = False
    """A fused kernel can hand over the largest magnitude that it saw before rounding."""

    def takes_amax_of(self, quantizer: Any) -> bool:
        """Whether ``takes_amax`` applies with this quantizer."""
        return self.takes_amax

    @abstractmethod
    def encode(
        self, quantizer: Any, values: torch.Tensor, dtype: torch.dtype, amax: torch.Tensor | None = None
    ) -> storage.Buffers:
        """The buffers of the quantized form of ``values`` (contiguous, non-empty, of any rank).

        Args:
            quantizer: a TE quantizer; delayed scaling also updates its amax.
            values: fp32 or of ``dtype``.
            dtype: the nominal dtype of the tensor that is made.
            amax: fp32[1] given by a fused kernel, when ``takes_amax``.
        """

    @abstractmethod
    def empty(self, quantizer: Any, shape: torch.Size, device: torch.device) -> storage.Buffers:
        """Buffers of the right shapes and unspecified contents, for a tensor of ``shape``."""

    @abstractmethod
    def decode(self, tensor: Any) -> torch.Tensor:
        """The fp32 values of a quantized tensor, in its shape."""

    @abstractmethod
    def operand(self, tensor: Any, columnwise: bool) -> Operand:
        """The tensor as a side of a matrix product that reads its row- or columnwise buffers.

        Raises:
            RuntimeError: the tensor lacks the buffers.
        """

    @abstractmethod
    def shape(self, tensor: Any) -> torch.Size:
        """The logical shape, from whichever buffer is there."""


def matrix_size(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix: leading dimensions flattened; a scalar is 1 x 1."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) else (1, 1)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix."""
    return tensor.reshape(matrix_size(tensor.shape))


def transposed_shape(shape: torch.Size) -> torch.Size:
    """``[..., K]`` to ``[K, ...]``."""
    return torch.Size([*shape[-1:], *shape[:-1]])
