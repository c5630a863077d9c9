"""These tests run on the emulation and nothing else; a process that uses the real extension skips them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.emulation import EmulationError, install

try:
    install()
    _unavailable = ""
except EmulationError as error:
    _unavailable = str(error)
    collect_ignore_glob = ["test_*.py"]

if not _unavailable:
    import torch
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    from harness.emulation import settings


def pytest_report_header() -> str:
    return f"emulation: {_unavailable or 'installed'}"


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    FP8GlobalStateManager.reset()


@pytest.fixture
def capability_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels see capability 10.0; only for tests that call the extension directly (TE's Python caches the answer)."""
    before = settings.current()
    monkeypatch.setattr(settings, "_current", settings.Settings((10, 0), before.te_version, before.facts))
