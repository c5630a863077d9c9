"""Puts faults into Thunder's side of cases, in every process that has this directory on its PYTHONPATH.

Python imports a module of this name when it starts. ``TEFUZZ_TEST_FAULT`` names the fault, or is ``by-seed``: then the
seed of the case numbers it, in steps of ``SEEDS``. A fault strikes in the forward of models that have a LayerNorm, so
that shrinking has a smallest case to find.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

TARGET = "harness.subjects.thunder_jit"
SEEDS = 60
"""Its multiples are in no sample of cases that run more than once."""


def segfault() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(3600)


def hang_with_the_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def torch_memory() -> None:
    import torch

    kept = []
    while True:
        kept.append(torch.empty(2**30, dtype=torch.uint8))  # address space only: nothing is written


def python_memory() -> None:
    bytearray(2**36)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def system_exit() -> NoReturn:
    raise SystemExit("the subject leaves")


def exits() -> NoReturn:
    os._exit(7)


def device_error() -> None:
    """As after an illegal memory access on a GPU: this and all that follows fails in this process."""
    import torch

    import __main__

    def synchronize() -> NoReturn:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.synchronize = synchronize  # type: ignore[assignment]
    real = __main__._device_error
    __main__._device_error = lambda _device: real("cuda")


def second_time(struck: list[int] = []) -> None:  # noqa: B006  one list for the process is meant
    struck.append(1)
    if len(struck) == 2:
        raise RuntimeError("the second time")


FAULTS: dict[str, Callable[[], None]] = {
    "segfault": segfault,
    "abort": os.abort,
    "hang": hang,
    "hang-with-the-gil": hang_with_the_gil,
    "torch-memory": torch_memory,
    "python-memory": python_memory,
    "killed": killed,
    "system-exit": system_exit,
    "exit": exits,
    "device-error": device_error,
    "second-time": second_time,
}


class Finder(importlib.abc.MetaPathFinder):
    """Patches the target when it is imported."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def patch(module: Any) -> None:
    from harness.case import LayerNorm

    real = module.ThunderSubject.forward
    chosen = os.environ["TEFUZZ_TEST_FAULT"]

    def forward(self: Any, index: int, x: Any) -> Any:
        if any(isinstance(layer, LayerNorm) for layer in self.case.layers):
            fault = list(FAULTS.values())[self.case.seed // SEEDS - 1] if chosen == "by-seed" else FAULTS[chosen]
            fault()
        return real(self, index, x)

    module.ThunderSubject.forward = forward


if "TEFUZZ_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, Finder())
