"""Random models and training schedules under ThunderFX, which is Thunder as a backend of ``torch.compile``.

TorchDynamo reads the program instead of Thunder's own interpreter, and each of its graphs becomes a module of its own.
"""

import pytest
from hypothesis import given

from harness.case import Case
from harness.pytest_plugin import FuzzSession
from strategies import cases


@pytest.mark.parametrize("shard", range(2))
@given(case=cases("transformer_engine", entries=("thunderfx",)))
def test_thunderfx(shard: int, case: Case, fuzz: FuzzSession) -> None:
    """Thunder's functional TE executor against eager te.ops."""
    fuzz.check("thunderfx", case)


@given(case=cases("torch", entries=("thunderfx",)))
def test_thunderfx_without_te(case: Case, fuzz: FuzzSession) -> None:
    """Thunder without TE against eager torch."""
    fuzz.check("thunderfx_without_te", case)
