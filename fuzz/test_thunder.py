"""Random models and training schedules: ``thunder.jit`` against eager execution.

xdist runs a test on one worker, so each test is split into a fixed number of shards with random streams of their own.
"""

import pytest
from hypothesis import given

from harness.case import Case
from harness.pytest_plugin import FuzzSession
from strategies import cases


@pytest.mark.parametrize("shard", range(6))
@given(case=cases("transformer_engine"))
def test_te_v2(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """Thunder's functional TE executor against eager te.ops."""
    fuzz.check("te_v2", case)


@pytest.mark.parametrize("shard", range(4))
@given(case=cases("transformer_engine_v1"))
def test_te_v1(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """Thunder's first TE executor against eager te.Linear."""
    fuzz.check("te_v1", case)


@pytest.mark.parametrize("shard", range(3))
@given(case=cases("torch"))
def test_torch(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """Thunder without TE against eager torch: are the parts right that the other tests take for granted?"""
    fuzz.check("torch", case)
