"""The objects that rewritten modules refer to by the names that the loader injects."""

from __future__ import annotations

from typing import Any

from harness.emulation import cuda, stubs
from harness.emulation.autocast import cpu_autocast
from harness.emulation.fuser import fp32_interior
from harness.emulation.hook import rewriter


def injected_names() -> dict[str, Any]:
    """Name to object, for the globals of a rewritten module."""
    return {
        rewriter.CUDA_FACADE: cuda,
        rewriter.OPTIONAL_IMPORT: stubs.optional_import,
        rewriter.FUSER: fp32_interior,
        rewriter.AUTOCAST: cpu_autocast,
    }
