"""What ``install()`` does: checks, settings, the fake extension module, the import hook."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.emulation import extension, hook, settings
from harness.emulation.errors import EmulationError

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


def activate_emulation(compute_capability: tuple[int, int]) -> None:
    """Install the fake extension and the hook.

    Raises:
        EmulationError: a module that the hook would have to rewrite was imported already.
    """
    _refuse_late_installation()
    settings.configure(compute_capability)
    sys.modules[extension.MODULE_NAME] = extension.build()
    hook.install(DEFAULT_PREFIXES)


def rewrite_also(prefixes: Sequence[str]) -> None:
    """Rewrite further modules, for example Transformer Engine's own tests, when they are imported."""
    hook.install(prefixes)


def _refuse_late_installation() -> None:
    if extension.MODULE_NAME in sys.modules:
        raise EmulationError(
            f"{extension.MODULE_NAME} is already imported: this process uses the real extension. "
            "Call harness.emulation.install() in a fresh process, before anything imports transformer_engine, "
            "or do without the emulation."
        )
    late = [name for name in DEFAULT_PREFIXES if name in sys.modules]
    if late:
        raise EmulationError(
            f"{', '.join(late)} is already imported. Call harness.emulation.install() (or import "
            "harness.emulation.activate) before anything imports transformer_engine or Thunder's TE executors."
        )
