"""Where cases run: the real TE extension on a CUDA device, or TE's Python over our CPU emulation of that extension.

``activate`` is the only place that imports torch, Thunder and TE for the first time, because the emulation has to be
in place before TE is imported and torch's missing methods have to be restored before Thunder is.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import warnings
from dataclasses import dataclass
from typing import Literal

SUBJECTS = ("transformer_engine", "lightning-thunder", "torch")
"""The packages whose versions a verdict depends on."""

DeviceChoice = Literal["auto", "cuda", "cpu"]

_active: Environment | None = None


class DeviceError(RuntimeError):
    """The requested device cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run ran on: part of every report."""

    device: Literal["cuda", "cpu"]
    device_name: str
    emulated: bool
    versions: tuple[tuple[str, str], ...]

    def header(self) -> str:
        """One line for pytest's header and for reports."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        extension = "CPU EMULATION of TE's extension" if self.emulated else "real TE extension"
        return f"{versions}; device {self.device} ({self.device_name}), {extension}"


def activate(choice: DeviceChoice = "auto") -> Environment:
    """Import torch, Thunder and TE for ``choice`` and return what is used; later calls return the same environment.

    Raises ``DeviceError`` when CUDA was asked for and is missing, when CUDA is present and the real extension cannot
    be imported (a GPU runner must never test the emulation by accident), or when a later call asks for another device.
    """
    global _active
    if _active is None:
        _active = _activate(choice)
    elif choice != "auto" and choice != _active.device:
        raise DeviceError(
            f"device {choice!r} was asked for, but this process already runs on {_active.device!r}: "
            "start a new process for another device"
        )
    return _active


def _activate(choice: DeviceChoice) -> Environment:
    # TE's small fused functions otherwise go through torch.compile, whose compile time dwarfs that of a case.
    os.environ.setdefault("NVTE_TORCH_COMPILE", "0")
    torch = importlib.import_module("torch")
    from harness.torch_compat import restore_named_tensor_methods

    restore_named_tensor_methods()
    device = _resolve(choice, torch.cuda.is_available())
    if device == "cuda":
        _import_real_extension()
        name = torch.cuda.get_device_name()
    else:
        from harness import emulation

        emulation.install()
        # Workers share the machine: one thread each. It also fixes the order of reductions.
        torch.set_num_threads(1)
        name = platform.machine()
    with warnings.catch_warnings():
        # Thunder 0.2.6 imports TE's deprecated module `fp8`; users can do nothing about it.
        warnings.filterwarnings("ignore", message="Using deprecated internal API from Transformer Engine")
        importlib.import_module("thunder")
    return Environment(device=device, device_name=name, emulated=device == "cpu", versions=installed_versions())


def installed_versions() -> tuple[tuple[str, str], ...]:
    """The subjects and their versions, without importing them."""
    return tuple((package, importlib.metadata.version(package)) for package in SUBJECTS)


def _resolve(choice: DeviceChoice, cuda: bool) -> Literal["cuda", "cpu"]:
    if choice == "cuda" and not cuda:
        raise DeviceError(
            "device 'cuda' was asked for, but torch sees no CUDA device. "
            "Install a CUDA build of torch and check `nvidia-smi`, or run with --tefuzz-device cpu."
        )
    if choice == "auto":
        return "cuda" if cuda else "cpu"
    return choice


def _import_real_extension() -> None:
    try:
        importlib.import_module("transformer_engine.pytorch")
        importlib.import_module("transformer_engine_torch")
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(
            "a CUDA device is present, but the real transformer_engine_torch cannot be imported "
            f"({type(error).__name__}: {error}). Install it with `pip install -e '.[gpu]'`, or test the "
            "emulation on purpose with --tefuzz-device cpu."
        ) from error
