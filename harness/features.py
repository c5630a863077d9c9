"""Named features of a case: what known issues are tied to, and what a run's statistics count."""

from __future__ import annotations

from itertools import pairwise

from harness.case import Activation, Case, Checkpoint, GatedActivation, Residual, walk


def features(case: Case) -> frozenset[str]:
    """All features that ``case`` has: ``layer:Linear``, ``recipe:DelayedScaling``, ``step:no_grad``..."""
    found = {
        f"dtype:{case.input.dtype}",
        f"distribution:{case.input.distribution}",
        f"rank:{len(case.input.batch) + 1}",
    }
    found.add("input:requires_grad" if case.input.requires_grad else "input:no_grad")
    recipe = case.precision.recipe
    found.add(f"recipe:{'none' if recipe is None else type(recipe).__name__}")
    found.add(f"recipe_object:{case.precision.recipe_object}")
    if case.jit is not None:
        found |= {f"executor:{case.jit.executor}", f"cache:{case.jit.cache}", f"entry:{case.jit.entry}"}
    if case.fuser is not None:
        found.add(f"hide_parameters:{case.fuser.hide_parameters}")
    found |= {f"step:{step.mode}" for step in case.steps}
    found.add("steps:one" if len(case.steps) == 1 else "steps:several")
    if len({step.batch or case.input.batch for step in case.steps}) > 1:
        found.add("step:second shape")
    return frozenset(found | _layer_features(case))


def _layer_features(case: Case) -> set[str]:
    found: set[str] = set()
    for path, layer in walk(case.layers):
        found.add(f"layer:{type(layer).__name__}")
        if isinstance(layer, Activation | GatedActivation):
            found.add(f"activation:{layer.function}")
        if getattr(layer, "frozen", ()):
            found.add("frozen")
        if getattr(layer, "zero_centered_gamma", False):
            found.add("zero_centered_gamma")
        if isinstance(layer, Checkpoint | Residual) and "." in path:
            found.add("nested region")
    rows = [case.layers, *(layer.body for _, layer in walk(case.layers) if isinstance(layer, Checkpoint | Residual))]
    if any(a == b for row in rows for a, b in pairwise(row)):
        found.add("equal layers in a row")
    return found
