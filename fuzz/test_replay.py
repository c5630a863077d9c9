"""Kept cases, with ``--tefuzz-replay DIR`` only: a test for each file."""

from collections.abc import Callable

import pytest

from harness.pytest_plugin import FuzzSession
from harness.replay import EXIT_CODES, Kept
from harness.replay_plugin import PROPERTY


def test_replay(kept: Kept, fuzz: FuzzSession, record_property: Callable[[str, object], None]) -> None:
    """The case is FIXED, PASSED or KNOWN."""
    result = fuzz.replay(kept)
    record_property(PROPERTY, str(result.outcome))
    if result.outcome in EXIT_CODES:
        pytest.fail(f"{result.outcome} {result.name}\n{result.detail}", pytrace=False)
