"""Puts a fault into Thunder's side of cases, in every process that has this directory on its PYTHONPATH.

Python imports a module of this name when it starts. ``TEFUZZ_TEST_FAULT`` names the fault; it strikes in the forward
of models that have a LayerNorm, so that shrinking has a smallest case to find.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any

TARGET = "harness.subjects.thunder_jit"


def segfault() -> None:
    ctypes.string_at(0)


def allocate() -> None:
    import torch

    kept = []
    while True:
        kept.append(torch.empty(2**30, dtype=torch.uint8))  # address space only: nothing is written


def hang_with_the_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def system_exit() -> None:
    raise SystemExit("the subject leaves")


def random_result(observed: list[int] = []) -> None:  # noqa: B006  one list for the process is meant
    observed.append(1)
    if len(observed) % 2:
        raise RuntimeError("every other time")


FAULTS = {
    "segfault": segfault,
    "abort": os.abort,
    "hang": lambda: time.sleep(3600),
    "hang-gil": hang_with_the_gil,
    "memory": allocate,
    "python-memory": lambda: bytearray(2**36),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "system-exit": system_exit,
    "exit": lambda: os._exit(7),
    "interrupt": lambda: os.kill(os.getppid(), signal.SIGINT) or time.sleep(3600),
    "random": random_result,
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
    fault = FAULTS[os.environ["TEFUZZ_TEST_FAULT"]]

    def forward(self: Any, index: int, x: Any) -> Any:
        if any(isinstance(layer, LayerNorm) for layer in self.case.layers):
            fault()
        return real(self, index, x)

    module.ThunderSubject.forward = forward


if "TEFUZZ_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, Finder())
