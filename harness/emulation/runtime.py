"""The objects that rewritten modules refer to by the names that the loader injects."""

from __future__ import annotations

from typing import Any

from harness.emulation import cuda, launchers, stubs
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


def replacements(module_name: str) -> dict[str, Any]:
    """Functions of a rewritten module that are replaced after it has run."""
    return dict(launchers.REPLACEMENTS.get(module_name, {}))
