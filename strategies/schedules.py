"""Training schedules: which steps are run, in which mode and shape, and what happens between them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from harness.case import Backward, Batch, Step, replace
from strategies.precision import current_scaling, delayed_scaling
from strategies.weights import weighted


def schedules(
    batches: tuple[Batch, ...], *, fp8_off: int, twice: bool, other_recipes: bool
) -> st.SearchStrategy[tuple[Step, ...]]:
    """One to five steps; most train on fresh data, some run without grad, some bring a second shape.

    Faults of FP8 state show from the second step on (the first one's amax decides the second one's scale), and a
    second shape makes Thunder compile a second pair of traces. Shrinks to one training step.

    FP8 is off in some steps: in every ``fp8_off``-th of one kind of step, in none with 0. It is for subjects that heed
    the autocast around a step, and rare where they are known to get it wrong. ``twice`` is for those without TE, whose
    eager modules refuse a second backward, ``other_recipes`` for subjects that take their recipe from the autocast.
    """
    plain, other = st.just(Step()), other_runs(batches)
    step = weighted(
        (2, plain),
        (4, other),
        (1, training_habits()),
        (2, late_backwards(twice=twice)),
        (1, changed_parameters()),
        (2, surprises()),
    )
    if fp8_off:
        step = step | st.sampled_from([Step()] * (fp8_off - 1) + [Step(fp8=False)])
    if other_recipes:
        step = step | another_recipe()
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


def another_recipe() -> st.SearchStrategy[Step]:
    """A step under a recipe of its own: another kind, or DelayedScaling with other parameters. Shrinks to another kind.

    Compiled traces, amax histories and quantizers were made for the recipe of an earlier step. Both kinds do not wear
    alike: what Thunder compiled under the one runs under the other, too.
    """
    return st.builds(Step, recipe=current_scaling() | current_scaling() | delayed_scaling())


TORCH_AUTOCASTS: dict[str, Callable[[int], bool]] = {
    "never": lambda index: False,
    "always": lambda index: True,
    "in every other step": lambda index: index % 2 == 1,
    "from time to time": lambda index: index % 3 == 0,
}


def torch_autocasts() -> st.SearchStrategy[Callable[[int], bool]]:
    """Which steps run in ``torch.autocast``, as a function of their index; none in most cases. Shrinks to none.

    Mixed precision is what most training scripts use around TE. Autocast changes the dtype of what Thunder hands to the
    executors, its cache keys, and which symbol of a linear they are asked for.
    """
    ways = ["never"] * 6 + ["always"] * 3 + ["in every other step", "from time to time"]
    return st.sampled_from(ways).map(TORCH_AUTOCASTS.__getitem__)


def microbatches(schedule: st.SearchStrategy[tuple[Step, ...]]) -> st.SearchStrategy[tuple[Step, ...]]:
    """The schedule, in some cases with steps that are microbatches, or that only calibrate. Shrinks to the schedule.

    TE keeps the quantised weights of a first microbatch for the later ones, also where an optimizer changes the weights
    in between. Gradients are usually accumulated meanwhile, which the schedule decides.
    """
    kinds: list[Callable[[int, Step], Step]] = [
        *[lambda index, step: step] * 4,
        lambda index, step: replace(step, first_microbatch=index % 2 == 0),
        lambda index, step: replace(step, first_microbatch=index == 0),
        lambda index, step: replace(step, calibrating=step.fp8 and index == 0),
        lambda index, step: replace(step, calibrating=step.fp8 and index == 1),
    ]
    return st.builds(
        lambda steps, change: tuple(change(index, step) for index, step in enumerate(steps)),
        schedule,
        st.sampled_from(kinds),
    )


def changed_parameters() -> st.SearchStrategy[Step]:
    """Parameters that are loaded from a state_dict, are other objects, or go on as a deep copy from this step on."""
    return st.builds(Step, before=st.sampled_from(["load_state_dict", "new_parameters", "deepcopy"]))


def surprises() -> st.SearchStrategy[Step]:
    """A step that trains a part of the parameters, and one that does not come to its end. Shrinks to the former.

    Freezing a part for some steps is what fine-tuning does: it changes the keys of Thunder's cache and which gradients
    TE's modules have to give. A step that raises must leave no half of its state to the next: not in the contexts of a
    compilation that was cut off, not in TE's autocast, not in an amax history.
    """
    partly = [Step(trainable="last_layer"), Step(trainable="biases"), Step(trainable="none")]
    raising = [Step(wrong_input=True), Step(wrong_input=True, mode="no_grad"), *[Step(backward="never")] * 2]
    return st.sampled_from(partly + raising)


def _consistent(first: list[Step], more: list[Step]) -> tuple[Step, ...]:
    """Nothing changes the parameters that a deferred backward still needs."""
    result: list[Step] = []
    for step in first + more:
        if result and result[-1].deferred:
            step = replace(step, before="nothing", trainable=result[-1].trainable)
        result.append(step)
    return tuple(result)
