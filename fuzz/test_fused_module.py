"""Random te.LayerNormLinear and te.LayerNormMLP modules, against their parts as modules of their own."""

import pytest
from hypothesis import given

from harness.case import Case
from harness.pytest_plugin import FuzzSession
from strategies import fused_module_cases


@pytest.mark.parametrize("shard", range(2))
@given(case=fused_module_cases())
def test_fused_module(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """One hand-written forward and backward pass, against a module for each part."""
    fuzz.check("fused_module", case)
