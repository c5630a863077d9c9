"""Training schedules: which steps are run, in which mode and shape."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.case import Batch, Step


def schedules(batches: tuple[Batch, ...]) -> st.SearchStrategy[tuple[Step, ...]]:
    """One to four steps; most train on fresh data, some run without grad, some bring a second shape.

    Faults of FP8 state show from the second step on (the first one's amax decides the second one's scale), and a
    second shape makes Thunder compile a second pair of traces. Shrinks to one training step.
    """
    train = st.just(Step())
    other = st.builds(
        Step,
        mode=st.sampled_from(["train", "no_grad", "eval"]),
        batch=st.none() | st.sampled_from(batches),
    )
    return st.lists(train | train | train | other, min_size=1, max_size=4).map(tuple)
