"""Training schedules: which steps are run, in which mode and shape, and what happens between them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from harness.case import Backward, Batch, Step, replace
from strategies.weights import weighted


def schedules(batches: tuple[Batch, ...], *, fp8_off: int, twice: bool) -> st.SearchStrategy[tuple[Step, ...]]:
    """One to five steps; most train on fresh data, some run without grad, some bring a second shape.

    Faults of FP8 state show from the second step on (the first one's amax decides the second one's scale), and a
    second shape makes Thunder compile a second pair of traces. Shrinks to one training step.

    FP8 is off in some steps: in every ``fp8_off``-th of one kind of step, in none with 0. It is for subjects that heed
    the autocast around a step, and rare where they are known to get it wrong. ``twice`` is for those without TE, whose
    eager modules refuse a second backward.
    """
    plain, other = st.just(Step()), other_runs(batches)
    step = weighted(
        (2, plain),
        (3, other),
        (1, training_habits()),
        (2, late_backwards(twice=twice)),
        (1, changed_parameters()),
    )
    if fp8_off:
        step = step | st.sampled_from([Step()] * (fp8_off - 1) + [Step(fp8=False)])
    # Two lists: one by itself has a single step in most cases, and deleting from either keeps the schedule valid.
    return st.builds(_consistent, st.lists(step, min_size=1, max_size=3), st.lists(step, max_size=2))


def other_runs(batches: tuple[Batch, ...]) -> st.SearchStrategy[Step]:
    """A step without grad, in evaluation mode or of another shape. Shrinks to a training step."""
    return st.builds(
        Step,
        mode=st.sampled_from(["train", "no_grad", "eval", "inference", "eval", "no_grad", "eval"]),
        batch=st.none() | st.sampled_from(batches),
    )


def training_habits() -> st.SearchStrategy[Step]:
    """Gradients that are accumulated or zeroed, and an optimizer that changes the weights that the JIT has seen.

    A weight's FP8 copy, or a gradient buffer, that outlives its step shows in the next one. Shrinks to SGD.
    """
    return st.builds(
        Step,
        gradients=st.sampled_from(["none", "accumulated", "zeroed"]),
        optimizer=st.sampled_from(["sgd", "adamw", "none"]),
    )


def late_backwards(*, twice: bool) -> st.SearchStrategy[Step]:
    """Several forwards before their backwards, in both orders, and one backward that runs twice.

    Saved tensors and FP8 scales of one forward must survive the next. Shrinks to the order of the forwards.
    """
    late: list[Backward] = ["after_next_forward", "after_next_step"]
    return st.builds(
        Step,
        backward=st.sampled_from([*late, "twice"] if twice else late),
        gradients=st.sampled_from(["none", "accumulated"]),
    )


def changed_parameters() -> st.SearchStrategy[Step]:
    """Parameters that are loaded from a state_dict, or are other objects, from this step on."""
    return st.builds(Step, before=st.sampled_from(["load_state_dict", "new_parameters"]))


def _consistent(first: list[Step], more: list[Step]) -> tuple[Step, ...]:
    """Nothing changes the parameters that a deferred backward still needs."""
    steps = first + more
    result = steps[:1]
    for before, step in pairwise(steps):
        result.append(replace(step, before="nothing") if before.deferred else step)
    return tuple(result)
