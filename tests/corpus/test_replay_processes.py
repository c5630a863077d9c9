"""Replaying in child processes: what a case does to one is a finding, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.device import DeviceError
from harness.isolation import IsolatedRunner, Settings
from harness.replay import Kept, Outcome
from harness.replay_processes import replay_in_processes
from tests.cli.support import write

FAULTS = Path(__file__).parents[1] / "isolation" / "faults"
CASE: dict[str, Any] = {"schema": 1, "jit": {"executor": "torch"}, "precision": {"recipe": None}}


def test_a_crash_is_a_finding_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("TEFUZZ_TEST_FAULT", "segfault")
    files = {
        "crash": CASE | {"layers": [{"layer": "layer_norm"}]},
        "broken": "{",
        "good": CASE | {"layers": [{"layer": "activation"}]},
    }
    work = [Kept(write(tmp_path / f"{name}.json", content)) for name, content in files.items()]
    done = list(replay_in_processes(work, [IsolatedRunner(Settings(device="cpu"))]))
    assert [kept for kept, _ in done] == work
    crash, broken, good = (result for _, result in done)
    assert crash.outcome is Outcome.FAILED
    assert crash.detail.startswith("crash/run/SIGSEGV")
    assert broken.outcome is Outcome.ERROR
    assert good.outcome is Outcome.PASSED


def test_a_device_that_is_not_there_is_no_outcome(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    kept = Kept(write(tmp_path / "case.json", CASE | {"layers": [{"layer": "activation"}]}))
    with pytest.raises(DeviceError, match="torch sees no CUDA device"):
        list(replay_in_processes([kept], [IsolatedRunner(Settings(device="cuda"))]))
