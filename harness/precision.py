"""From the recipes of a case to TE's recipe objects, and which linears TE runs under them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import transformer_engine.pytorch as te
from transformer_engine.common import recipe as te_recipe

from harness.build import step_batch, trainable_parameters
from harness.case import Case, DelayedScaling, Float8CurrentScaling, Recipe, in_autocast, linears, without_grad

FORMATS = {"HYBRID": te_recipe.Format.HYBRID, "E4M3": te_recipe.Format.E4M3}


class Recipes:
    """TE recipe objects for the steps of a case: one for all steps, or an equal new one for each."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._shared = make_recipe(case.precision.recipe)
        self._others: dict[Recipe, te_recipe.Recipe | None] = {}

    def autocast(self, index: int) -> AbstractContextManager[None]:
        """TE's FP8 autocast as step ``index`` wants it around its forward."""
        recipe, calibrates = self.for_step(index), self._case.steps[index].calibrating
        context: AbstractContextManager[None] = te.fp8_autocast(
            enabled=recipe is not None and not calibrates, calibrating=calibrates, fp8_recipe=recipe
        )
        return context

    def for_step(self, index: int) -> te_recipe.Recipe | None:
        """The recipe object of step ``index``, None without FP8."""
        step = self._case.steps[index]
        if not step.fp8:
            return None
        if self._case.precision.recipe_object == "new_each_step":
            return make_recipe(recipe_of(self._case, index))
        if step.recipe in (None, self._case.precision.recipe):
            return self._shared
        return self._others.setdefault(step.recipe, make_recipe(step.recipe))


def recipe_of(case: Case, index: int) -> Recipe | None:
    """The recipe of step ``index``; None without FP8."""
    step = case.steps[index]
    return (step.recipe or case.precision.recipe) if step.fp8 else None


def make_recipe(recipe: Recipe | None) -> te_recipe.Recipe | None:
    """A new TE recipe object."""
    match recipe:
        case None:
            return None
        case DelayedScaling():
            return te_recipe.DelayedScaling(
                margin=recipe.margin,
                fp8_format=FORMATS[recipe.format],
                amax_history_len=recipe.amax_history_len,
                amax_compute_algo=recipe.amax_compute_algo,
            )
        case Float8CurrentScaling():
            return te_recipe.Float8CurrentScaling(fp8_format=FORMATS[recipe.format])


def claimed_linears(case: Case, index: int) -> tuple[str, ...]:
    """Paths of the linears that the case's TE executor claims in step ``index``, in order of execution.

    The rule is that of ``_linear_checker`` in thunder/executors/transformer_engineex_impl.py and
    transformer_engine_v1ex.py: the recipe is supported, and both operands fit an FP8 GEMM. Beyond it, Thunder 0.2.6
    asks TE only for what it differentiates: elsewhere a linear stays ``ltorch.linear``, which the torch
    executor claims before Thunder looks at the primitive inside that TE registered (docs/findings.md, "inference").
    In ``torch.autocast`` its rule for linear gives the primitive, so TE is asked.
    """
    if case.jit is None or case.jit.executor == "torch" or not _recipe_is_claimed(case, index):
        return ()
    primitive = set(in_autocast(case.layers, case.steps[index].torch_autocast))
    undifferentiated = without_grad(case.layers)
    rows = math.prod(step_batch(case, index))
    return tuple(
        path
        for path, layer, width, _ in linears(case.layers, case.input.features)
        if (path in primitive or (differentiated(case, index) and path not in undifferentiated))
        and fits_fp8(rows, width)
        and fits_fp8(layer.out_features, width)
    )


def _recipe_is_claimed(case: Case, index: int) -> bool:
    """Whether the executor supports the recipe of a step, or that of the step which compiled its specialisation.

    A trace that was compiled under one recipe runs under each other one that TE has: no cache key knows of recipes.
    """
    recipe = recipe_of(case, index)
    if isinstance(recipe, DelayedScaling) or recipe is None:
        return recipe is not None
    first = next(i for i in range(index + 1) if specialisation(case, i) == specialisation(case, index))
    return isinstance(recipe_of(case, first), DelayedScaling)


def specialisation(case: Case, index: int) -> tuple[object, ...]:
    """Steps with equal ones run the same compiled traces, and share their FP8 state."""
    assert case.jit is not None
    if case.jit.compiles_each_step:
        return (index,)
    step = case.steps[index]
    evaluates = step.mode == "eval" and case.jit.entry == "module"
    trainable = frozenset(trainable_parameters(case, index))
    return step_batch(case, index), step.mode == "train", evaluates, step.fp8, step.torch_autocast, trainable


def differentiated(case: Case, index: int) -> bool:
    """Whether step ``index`` has a backward pass: it trains, and something requires grad."""
    return case.steps[index].mode == "train" and (case.input.requires_grad or bool(trainable_parameters(case, index)))


def fits_fp8(rows: int, columns: int) -> bool:
    """Whether a matrix fits an FP8 GEMM (``check_dim_for_fp8_exec`` in transformer_engine/pytorch/utils.py)."""
    return rows % 8 == 0 and columns % 16 == 0
