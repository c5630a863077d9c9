"""Which cases get the checks that cost too much for every case: decided by the case, so a verdict stays the same.

The choice depends on the seed of the case and on nothing else: whatever else Hypothesis makes smaller while it shrinks,
the check stays on. It does not take in the default seed of 0.
"""

from __future__ import annotations

from harness.case import Autocast, Case, walk


def in_sample(case: Case, one_in: int) -> bool:
    """Whether ``case`` is in the sample of one case in ``one_in``. The smallest seed that is, is 1 for every sample."""
    return case.seed % one_in == 1 % one_in


def has_one_precision(case: Case) -> bool:
    """Whether all of the case runs under one recipe and without torch.autocast.

    What a change of precision between or inside steps does to relations between runs was not examined.
    """
    steps_alike = all(
        step.recipe is None and not step.calibrating and step.first_microbatch is None and not step.torch_autocast
        for step in case.steps
    )
    fused = case.jit is None and case.fuser is None
    return steps_alike and not fused and not any(isinstance(layer, Autocast) for _, layer in walk(case.layers))
