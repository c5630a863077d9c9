"""Precision: recipes and their parameters."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.case import DelayedScaling, Float8CurrentScaling, Precision


def delayed_scaling() -> st.SearchStrategy[DelayedScaling]:
    """``DelayedScaling`` with short histories, which wrap around within a case. Shrinks to TE's defaults."""
    return st.builds(
        DelayedScaling,
        margin=st.sampled_from([0, 1, 3]),
        format=st.sampled_from(["HYBRID", "E4M3"]),
        amax_history_len=st.sampled_from([1024, 16, 4, 2, 1]),
        amax_compute_algo=st.sampled_from(["max", "most_recent"]),
    )


def current_scaling() -> st.SearchStrategy[Float8CurrentScaling]:
    """``Float8CurrentScaling``. Shrinks to TE's defaults."""
    return st.builds(Float8CurrentScaling, format=st.sampled_from(["HYBRID", "E4M3"]))


def precisions(*, current: bool, none: bool) -> st.SearchStrategy[Precision]:
    """The autocast around the steps; most cases use DelayedScaling, the recipe that carries state between steps."""
    # Hypothesis prefers fewer choices: the default recipe must cost none, or cases would shrink to another one.
    recipes: list[st.SearchStrategy[Any]] = [st.just(DelayedScaling()), delayed_scaling(), delayed_scaling()]
    if current:
        recipes.append(current_scaling())
    recipe = st.one_of(*recipes, *([st.none()] if none else []))
    # A new, equal recipe object in each step is what `DelayedScaling()` inside a training loop gives.
    return st.builds(Precision, recipe=recipe, recipe_object=st.sampled_from(["shared"] * 3 + ["new_each_step"]))
