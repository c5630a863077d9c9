"""Which modules are emulated, and the check that none of them was imported for real before."""

from __future__ import annotations

import sys

from harness.emulation.errors import EmulationError

EXTENSION = "transformer_engine_torch"

DEFAULT_PREFIXES: tuple[str, ...] = (
    "transformer_engine",
    "thunder.executors.transformer_engineex",
    "thunder.executors.transformer_engineex_impl",
    "thunder.executors.transformer_engine_v1ex",
    "thunder.executors.transformer_engine_v2ex",
    "thunder.executors.transformer_engine_v2ex_impl",
    "thunder.transforms.te_inference",
)
"""Modules in which "cuda" means the CPU; a prefix covers the module and everything below it."""


def refuse_late_installation() -> None:
    """Raise EmulationError when a module that would have to be replaced or rewritten was imported already."""
    if EXTENSION in sys.modules:
        raise EmulationError(
            f"{EXTENSION} is already imported: this process uses the real extension. "
            "Call harness.emulation.install() in a fresh process, before anything imports transformer_engine, "
            "or do without the emulation."
        )
    late = [name for name in DEFAULT_PREFIXES if name in sys.modules]
    if late:
        raise EmulationError(
            f"{', '.join(late)} is already imported. Call harness.emulation.install() (or import "
            "harness.emulation.activate) before anything imports transformer_engine or Thunder's TE executors."
        )
