"""Whole cases: one strategy for each subject under test."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.case import Case, Executor, Fuser, Hiding, Input, Jit, Precision, Step, replace
from strategies.inputs import ALIGNED_BATCHES, ODD_BATCHES, TAME_DISTRIBUTIONS, inputs
from strategies.layers import (
    ALIGNED_WIDTHS,
    ODD_WIDTHS,
    PIPELINE_ACTIVATIONS,
    TORCH_ACTIVATIONS,
    Model,
    models,
    unfrozen,
)
from strategies.precision import precisions
from strategies.schedules import schedules

WIDTHS = ALIGNED_WIDTHS * 3 + ODD_WIDTHS
"""Mostly widths that TE takes: a case in which TE runs nowhere tests little."""
BATCHES = ALIGNED_BATCHES * 3 + ODD_BATCHES

seeds = st.integers(0, 2**16)
"""Seeds of parameters and data: small ones, so that a shrunk case reads well."""


# Built once: Hypothesis validates a strategy when it is first drawn from, which costs more than drawing.
JIT_INPUTS = inputs(BATCHES, WIDTHS)
# Half precision overflows where float64, the arbiter of these cases, does not.
TORCH_INPUTS = inputs(BATCHES, WIDTHS, ("float32", "bfloat16"), TAME_DISTRIBUTIONS)
JIT_MODELS = models(WIDTHS, TORCH_ACTIVATIONS, regions=True, max_size=4)
JIT_SCHEDULES = schedules(BATCHES)
FUSER_INPUTS = inputs(ALIGNED_BATCHES, ALIGNED_WIDTHS)
FUSER_MODELS = models(ALIGNED_WIDTHS, PIPELINE_ACTIVATIONS, regions=False, max_size=6)
HIDINGS: tuple[Hiding, ...] = ("between_forward_and_backward",) * 4 + ("fsdp", "fsdp", *("never",) * 3, "from_start")
FUSER_SCHEDULES = schedules(ALIGNED_BATCHES)


def jits(executor: Executor) -> st.SearchStrategy[Jit]:
    """How the JIT is called. Shrinks to a module under Thunder's default cache.

    Modules are drawn less often than functions: Thunder takes twice as long to compile one.
    """
    return st.builds(
        Jit,
        executor=st.just(executor),
        cache=st.sampled_from(["constant values", "constant values", "constant values", "no caching"]),
        entry=st.sampled_from(["module", "function", "function", "function", "grad"]),
    )


def cases(executor: Executor) -> st.SearchStrategy[Case]:
    """A case for ``thunder.jit`` with ``executor`` first. Shrinks to one linear, one training step, TE's defaults."""
    return st.builds(
        _case,
        model=JIT_MODELS,
        given_input=TORCH_INPUTS if executor == "torch" else JIT_INPUTS,
        precision=precisions(current=executor == "transformer_engine", none=executor == "torch"),
        steps=JIT_SCHEDULES,
        jit=jits(executor),
        fuser=st.none(),
        seed=seeds,
    )


def fuser_cases() -> st.SearchStrategy[Case]:
    """A te.ops pipeline for the operation fuser. Shrinks to one linear whose parameters are hidden in backward.

    A pipeline whose parameters stay in place runs without FP8: it is compared with plain torch.
    """
    return st.builds(
        _case,
        model=FUSER_MODELS,
        given_input=FUSER_INPUTS,
        precision=precisions(current=True, none=True),
        steps=FUSER_SCHEDULES,
        jit=st.none(),
        fuser=st.builds(
            Fuser,
            hide_parameters=st.sampled_from(HIDINGS),
        ),
        seed=seeds,
    )


def _case(
    model: Model,
    given_input: Input,
    precision: Precision,
    jit: Jit | None,
    fuser: Fuser | None,
    steps: tuple[Step, ...],
    **rest: Any,
) -> Case:
    layers = model(given_input.features)
    if fuser is not None and fuser.hide_parameters == "never":
        precision = Precision(recipe=None)
    if jit is not None and jit.entry == "grad":
        # It differentiates everything, in training steps: what was drawn otherwise is set so.
        given_input = replace(given_input, requires_grad=True)
        layers = unfrozen(layers)
        steps = tuple(replace(step, mode="train") for step in steps)
    return Case(layers=layers, input=given_input, precision=precision, jit=jit, fuser=fuser, steps=steps, **rest)
