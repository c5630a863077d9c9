"""What ``install()`` does: settings, the fake extension module, the import hook."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.emulation import extension, hook, settings
from harness.emulation.guard import DEFAULT_PREFIXES, EXTENSION


def activate_emulation(compute_capability: tuple[int, int]) -> None:
    """Install the fake extension and the hook; ``guard`` has made sure that it is not too late."""
    settings.configure(compute_capability)
    sys.modules[EXTENSION] = extension.build()
    hook.install(DEFAULT_PREFIXES)


def rewrite_also(prefixes: Sequence[str] = (), directories: Sequence[Path] = ()) -> None:
    """Rewrite further modules when they are imported, for example Transformer Engine's own tests.

    Args:
        prefixes: dotted names of modules and packages.
        directories: places whose Python files are rewritten under whatever name they are imported.
    """
    hook.install(prefixes, directories)
