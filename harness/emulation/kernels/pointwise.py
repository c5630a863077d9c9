"""Activation functions and their derivatives on fp32 tensors.

Source: common/util/math.h; constants and the order of operations are those of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Pointwise = Callable[[torch.Tensor], torch.Tensor]

_QUICK = 1.702


def relu(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0); NaN gives 0, as the kernel's fmaxf does."""
    return torch.where(x > 0, x, 0.0)


def drelu(x: torch.Tensor) -> torch.Tensor:
    """1 where x > 0."""
    return (x > 0).float()


def srelu(x: torch.Tensor) -> torch.Tensor:
    """Squared ReLU."""
    return torch.where(x > 0, x * x, 0.0)


def dsrelu(x: torch.Tensor) -> torch.Tensor:
    """Derivative of squared ReLU."""
    return torch.where(x > 0, 2.0 * x, 0.0)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form."""
    return x * (0.5 + 0.5 * torch.tanh(x * (0.79788456 + 0.03567741 * x * x)))


def dgelu(x: torch.Tensor) -> torch.Tensor:
    """Derivative of GELU in its tanh form."""
    tanh = torch.tanh(0.79788456 * x * (1.0 + 0.044715 * x * x))
    return 0.5 * x * ((1.0 - tanh * tanh) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1.0 + tanh)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x)."""
    return x * torch.sigmoid(x)


def dsilu(x: torch.Tensor) -> torch.Tensor:
    """Derivative of SiLU."""
    sigmoid = torch.sigmoid(x)
    return x * (sigmoid * (1.0 - sigmoid)) + sigmoid


def qgelu(x: torch.Tensor, alpha: float = _QUICK) -> torch.Tensor:
    """x * sigmoid(alpha * x)."""
    return x * torch.sigmoid(alpha * x)


def dqgelu(x: torch.Tensor, alpha: float = _QUICK) -> torch.Tensor:
    """Derivative of quick GELU."""
    sigmoid = torch.sigmoid(alpha * x)
    return alpha * x * (sigmoid * (1.0 - sigmoid)) + sigmoid


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Logistic function."""
    return torch.sigmoid(x)


def dsigmoid(x: torch.Tensor) -> torch.Tensor:
    """Derivative of the logistic function."""
    value = torch.sigmoid(x)
    return value * (1.0 - value)
