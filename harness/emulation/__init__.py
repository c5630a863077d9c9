"""CPU emulation of ``transformer_engine_torch``, Transformer Engine's compiled extension.

``install()`` makes the real Python code of Transformer Engine (and of Thunder's TE executors) run on CPU tensors.
Nothing heavy is imported before it is called.
"""

from __future__ import annotations

from harness.emulation.errors import EmulationError
from harness.emulation.guard import refuse_late_installation

__all__ = ["EmulationError", "install", "is_installed", "unimplemented_calls"]

_installed_capability: tuple[int, int] | None = None


def install(compute_capability: tuple[int, int] = (9, 0)) -> None:
    """Put the emulated extension in place; must run before Transformer Engine is imported.

    Args:
        compute_capability: the GPU generation that Transformer Engine is told it runs on, for example ``(9, 0)``
            (Hopper, FP8) or ``(10, 0)`` (Blackwell, also MXFP8 and NVFP4). It decides which recipes are available
            and whether FP8 tensors carry transposed copies.

    Calling it again with the same capability does nothing.

    Raises:
        EmulationError: Transformer Engine or the real extension was imported before, or the emulation is already
            installed with another capability.
    """
    global _installed_capability
    capability = _validated(compute_capability)
    if _installed_capability is not None:
        if _installed_capability != capability:
            raise EmulationError(
                f"the emulation is already installed with compute capability {_installed_capability}; it cannot be "
                f"changed to {capability} in the same process. Start a new process for the other capability."
            )
        return
    refuse_late_installation()
    from harness.emulation.installation import activate_emulation

    activate_emulation(capability)
    _installed_capability = capability


def is_installed() -> bool:
    """Whether ``install()`` was called in this process."""
    return _installed_capability is not None


def unimplemented_calls() -> dict[str, int]:
    """How often each function of the extension that is not emulated was called, by name."""
    if not is_installed():
        return {}
    from harness.emulation.kernels import registry

    return dict(registry.unimplemented_counts)


def _validated(capability: tuple[int, int]) -> tuple[int, int]:
    major, minor = capability
    if (major, minor) < (8, 9):
        raise EmulationError(
            f"compute capability {(major, minor)} has no FP8; use (8, 9), (9, 0), (10, 0) or a later one."
        )
    return int(major), int(minor)
