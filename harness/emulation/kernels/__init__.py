"""The emulated functions of the extension, one module per topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.emulation.kernels import registry


def emulated_functions() -> dict[str, Callable[..., Any]]:
    """All emulated functions by name."""
    from harness.emulation.kernels import (  # noqa: F401 (importing registers)
        activation,
        device,
        dropout,
        gated,
        gemm,
        grouped,
        multi_tensor,
        norm,
        optimizer,
        quantize,
        scale_layout,
        scale_update,
    )

    return registry.functions()
