"""Turns a pytest session into a fuzz run."""

import pytest

from harness.gpus import workers
from harness.pytest_plugin import register_fuzz_session


def pytest_configure(config: pytest.Config) -> None:
    register_fuzz_session(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto`` counts GPUs where there are any."""
    if config.getoption("--tefuzz-device") == "cpu":
        return None
    return workers(config.getoption("--tefuzz-workers-per-gpu"))
