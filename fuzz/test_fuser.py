"""Random te.ops pipelines whose parameters are hidden as FSDP hides them, against the same pipelines unhidden."""

import pytest
from hypothesis import given

from harness.case import Case
from harness.pytest_plugin import FuzzSession
from strategies import fuser_cases


@pytest.mark.parametrize("shard", range(3))
@given(case=fuser_cases())
def test_fuser(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """TE's operation fuser with parameters in place, hidden in backward, or hidden from the start."""
    fuzz.check("fuser", case)
