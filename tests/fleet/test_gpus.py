"""Which GPU each worker gets, asked of the environment of real workers; a stand-in for nvidia-smi lists GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.gpus import least_used, visible_gpus, workers

CONFTEST = """

import os
import pathlib
import sys

LOG = pathlib.Path({log!r})


def pytest_collection_finish(session):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with LOG.open("a") as log:
        log.write(f"{{worker}} {{os.environ.get('CUDA_VISIBLE_DEVICES')}} {{'torch' in sys.modules}}\\n")


# Without the look at the device: there is none.
from harness.pytest_plugin import FuzzSession

FuzzSession.pytest_sessionstart = lambda self: None
FuzzSession.pytest_report_header = lambda self: []
"""
TESTS = """
import os
import pathlib
import time

import pytest


@pytest.mark.parametrize("number", range(8))
def test_environment(number):
    if {dies}:
        if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
            os._exit(1)
        for _ in range(600):
            if "gw2" in pathlib.Path({log!r}).read_text():
                break
            time.sleep(0.1)
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> str:
    """A PATH on which nvidia-smi lists two GPUs, one of them in two MIG parts."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho '  MIG 1g.18gb Device 0: (UUID: MIG-1)'\n"
        "echo 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n"
    )
    tool.chmod(0o755)
    return f"{tool.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("0,1", ("0", "1")), ("GPU-1, 3", ("GPU-1", "3")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("NoDevFiles", ())],
)
def test_the_environment_decides(given: str, expected: tuple[str, ...], nvidia_smi: str) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given, "PATH": nvidia_smi}) == expected


def test_the_driver_is_asked_otherwise(nvidia_smi: str, tmp_path: Path) -> None:
    assert visible_gpus({"PATH": nvidia_smi}) == ("0", "1")
    assert visible_gpus({"PATH": str(tmp_path)}) == ()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: none'\nexit 9\n")
    assert visible_gpus({"PATH": nvidia_smi}) == (), "the driver does not work"


def test_workers_and_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert (workers(1), workers(3)) == (2, 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert workers(2) is None, "cores count"
    assert least_used(("2", "5"), ()) == "2"
    assert least_used(("2", "5"), ("2", "5", "2")) == "5"


@pytest.mark.parametrize(
    ("options", "dies", "expected"),
    [
        ((), False, {"gw0": "0", "gw1": "1"}),
        (("--tefuzz-workers-per-gpu", "2"), False, {"gw0": "0", "gw1": "1", "gw2": "0", "gw3": "1"}),
        (("--tefuzz-device", "cpu", "-n", "2"), False, {"gw0": "None", "gw1": "None"}),
        ((), True, {"gw0": "0", "gw1": "1", "gw2": "0"}),
    ],
    ids=["one worker per GPU", "two workers per GPU", "CPU", "a worker is replaced"],
)
def test_each_worker_has_its_gpu_before_torch_is_imported(
    options: tuple[str, ...], dies: bool, expected: dict[str, str], nvidia_smi: str, tmp_path: Path
) -> None:
    suite = tmp_path / "fuzz"
    suite.mkdir()
    conftest = Path(__file__).parent.parent.parent / "fuzz" / "conftest.py"
    log = tmp_path / "log"
    (suite / "conftest.py").write_text(conftest.read_text() + CONFTEST.format(log=str(log)))
    (suite / "test_environment.py").write_text(TESTS.format(log=str(log), dies=dies))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUDA_VISIBLE"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(suite), "-n", "auto", "-p", "no:cacheprovider", "-q", *options],
        cwd=tmp_path,
        env=environment | {"PATH": nvidia_smi},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("gw")]
    assert {(worker, gpu) for worker, gpu, _ in lines} == set(expected.items()), done.stdout + done.stderr
    assert {imported for _, _, imported in lines} == {"False"}
