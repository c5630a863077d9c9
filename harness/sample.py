"""Which cases get the checks that cost too much for every case: decided by the case, so a verdict stays the same.

The choice depends on the seed of the case and on nothing else: whatever else Hypothesis makes smaller while it shrinks,
the check stays on. It does not take in the default seed of 0.
"""

from __future__ import annotations

from harness.case import Case


def in_sample(case: Case, one_in: int) -> bool:
    """Whether ``case`` is in the sample of one case in ``one_in``. The smallest seed that is, is 1 for every sample."""
    return case.seed % one_in == 1 % one_in
