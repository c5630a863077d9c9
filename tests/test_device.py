"""Which extension is used, and that a GPU runner never tests the emulation by accident."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import device
from harness.device import DeviceError, Environment

ROOT = Path(__file__).parent.parent
CPU = Environment("cpu", "a machine", True, (("torch", "2.13.0"), ("lightning-thunder", "0.2.6")))


@pytest.mark.parametrize(
    ("choice", "cuda", "expected"),
    [
        ("auto", True, "cuda"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cpu", False, "cpu"),
        ("cuda", True, "cuda"),
    ],
)
def test_choice(choice: device.DeviceChoice, cuda: bool, expected: str) -> None:
    assert device._resolve(choice, cuda) == expected


def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no CUDA device.*run with --tefuzz-device cpu"):
        device._resolve("cuda", False)


def importing(missing: str, error: Exception) -> Callable[[str], Any]:
    def import_module(name: str) -> Any:
        if name == missing:
            raise error

    return import_module


@pytest.mark.parametrize("module", ["transformer_engine.pytorch", "transformer_engine_torch"])
@pytest.mark.parametrize("error", [ImportError("no module"), OSError("libcudnn.so.9: cannot open"), RuntimeError("?")])
def test_cuda_without_the_extension_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, module: str, error: Exception
) -> None:
    monkeypatch.setattr(importlib, "import_module", importing(module, error))
    with pytest.raises(DeviceError) as caught:
        device._import_real_extension()
    for part in (f"{type(error).__name__}: {error}", "pip install -e '.[gpu]'", "--tefuzz-device cpu"):
        assert part in str(caught.value)
    assert caught.value.__cause__ is error


def test_auto_on_a_gpu_machine_does_not_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of ``activate``: CUDA is there, the extension is not, and nothing of the emulation is touched."""
    torch = pytest.importorskip("torch")
    from harness import emulation

    def no_extension() -> None:
        raise DeviceError("cannot be imported")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "_active", None)
    monkeypatch.setattr(device, "_import_real_extension", no_extension)
    monkeypatch.setattr(emulation, "install", lambda: pytest.fail("the emulation was installed"))
    with pytest.raises(DeviceError, match="cannot be imported"):
        device.activate("auto")
    assert device._active is None


def test_one_device_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_active", CPU)
    assert device.activate() is CPU
    assert device.activate("cpu") is CPU
    with pytest.raises(DeviceError, match="already runs on 'cpu': start a new process"):
        device.activate("cuda")


def test_header() -> None:
    assert CPU.header() == (
        "torch 2.13.0, lightning-thunder 0.2.6; device cpu (a machine), CPU EMULATION of TE's extension"
    )
    real = Environment("cuda", "H100", False, CPU.versions)
    assert real.header().endswith("device cuda (H100), real TE extension")


def test_activate_on_the_cpu_leaves_torch_as_it_is() -> None:
    script = """
import os, sys
from harness.device import activate
environment = activate("cpu")
assert environment is activate()
assert environment.emulated and environment.device == "cpu"
assert dict(environment.versions).keys() == {"transformer_engine", "lightning-thunder", "torch"}
import torch, thunder, transformer_engine.pytorch
assert torch.cuda.is_available() == (os.environ.get("EXPECT_CUDA") == "1")
assert torch.get_num_threads() == 1
assert os.environ["NVTE_TORCH_COMPILE"] == "0"
assert "transformer_engine_torch" in sys.modules
"""
    torch = pytest.importorskip("torch")
    expect = {"EXPECT_CUDA": "1" if torch.cuda.is_available() else "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT, env=os.environ | expect, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
