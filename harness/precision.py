"""From the recipes of a case to TE's recipe objects, and which linears TE runs under them."""

from __future__ import annotations

import math

from transformer_engine.common import recipe as te_recipe

from harness.build import step_batch, trainable_parameters
from harness.case import Case, DelayedScaling, Float8CurrentScaling, Recipe, linears

FORMATS = {"HYBRID": te_recipe.Format.HYBRID, "E4M3": te_recipe.Format.E4M3}


class Recipes:
    """TE recipe objects for the steps of a case: one for all steps, or an equal new one for each."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._shared = make_recipe(case.precision.recipe)

    def for_step(self, index: int) -> te_recipe.Recipe | None:
        """The recipe object of step ``index``, None without FP8."""
        if not self._case.steps[index].fp8:
            return None
        if self._case.precision.recipe_object == "shared":
            return self._shared
        return make_recipe(self._case.precision.recipe)


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
    asks TE only for traces that it differentiates: in the others a linear stays ``ltorch.linear``, which the torch
    executor claims before Thunder looks at the primitive inside that TE registered (docs/findings.md, "inference").
    """
    if case.jit is None or case.jit.executor == "torch" or not differentiated(case, index):
        return ()
    if not case.steps[index].fp8:
        return ()
    if not isinstance(case.precision.recipe, DelayedScaling):
        return ()
    rows = math.prod(step_batch(case, index))
    return tuple(
        path
        for path, layer, width, _ in linears(case.layers, case.input.features)
        if fits_fp8(rows, width) and fits_fp8(layer.out_features, width)
    )


def differentiated(case: Case, index: int) -> bool:
    """Whether step ``index`` has a backward pass: it trains, and something requires grad."""
    return case.steps[index].mode == "train" and (case.input.requires_grad or bool(trainable_parameters(case)))


def fits_fp8(rows: int, columns: int) -> bool:
    """Whether a matrix fits an FP8 GEMM (``check_dim_for_fp8_exec`` in transformer_engine/pytorch/utils.py)."""
    return rows % 8 == 0 and columns % 16 == 0
