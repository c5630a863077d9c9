"""Turns a pytest session into a fuzz run."""

import pytest

from harness.pytest_plugin import register_fuzz_session


def pytest_configure(config: pytest.Config) -> None:
    register_fuzz_session(config)
