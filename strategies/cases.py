"""Whole cases: one strategy for each subject under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from harness.case import (
    Activation,
    AnyLayer,
    Autocast,
    Case,
    Cast,
    Checkpoint,
    DelayedScaling,
    Dropout,
    Entry,
    Executor,
    ExtraOutput,
    FusedModule,
    Fuser,
    GatedActivation,
    Hiding,
    Input,
    Jit,
    LayerNorm,
    Linear,
    NoGrad,
    Precision,
    Recipe,
    Residual,
    RMSNorm,
    Step,
    replace,
    walk,
)
from strategies.inputs import (
    ALIGNED_BATCHES,
    ODD_BATCHES,
    SUMMABLE_GRADIENT_LAYOUTS,
    TAME_DISTRIBUTIONS,
    WIDE_DISTRIBUTIONS,
    inputs,
)
from strategies.layers import (
    ALIGNED_WIDTHS,
    ODD_WIDTHS,
    PIPELINE_ACTIVATIONS,
    TORCH_ACTIVATIONS,
    Model,
    all_trainable,
    fused_modules,
    models,
    without_transposed,
)
from strategies.precision import precisions
from strategies.schedules import microbatches, schedules, torch_autocasts

WIDTHS = ALIGNED_WIDTHS * 3 + ODD_WIDTHS
"""Mostly widths that TE takes: a case in which TE runs nowhere tests little."""
BATCHES = ALIGNED_BATCHES * 3 + ODD_BATCHES

EXECUTORS: tuple[Executor, ...] = ("transformer_engine", "transformer_engine_v1", "torch")
ENTRIES: tuple[Entry, ...] = ("module", "function", "function", "function", "grad")
"""Modules less often than functions: Thunder takes twice as long to compile one."""

seeds = st.integers(0, 2**16)
"""Seeds of parameters and data: small ones, so that a shrunk case reads well."""


# Built once: Hypothesis validates a strategy when it is first drawn from, which costs more than drawing.
JIT_INPUTS = inputs(BATCHES, WIDTHS, gradient_layouts=SUMMABLE_GRADIENT_LAYOUTS)
# Half precision overflows where float64, the arbiter of these cases, does not.
TORCH_INPUTS = inputs(BATCHES, WIDTHS, ("float32", "bfloat16"), TAME_DISTRIBUTIONS)
JIT_MODELS = models(WIDTHS, TORCH_ACTIVATIONS, pipeline=False, max_size=4)
JIT_SCHEDULES = {
    executor: schedules(
        BATCHES,
        fp8_off=8 if executor == "transformer_engine" else 0,
        twice=executor == "torch",
        other_recipes=executor == "transformer_engine",
    )
    for executor in EXECUTORS
}
FUSER_INPUTS = inputs(ALIGNED_BATCHES, ALIGNED_WIDTHS)
FUSER_MODELS = models(ALIGNED_WIDTHS, PIPELINE_ACTIVATIONS, pipeline=True, max_size=6)
HIDINGS: tuple[Hiding, ...] = (
    *("between_forward_and_backward",) * 4,
    *("fsdp",) * 2,
    *("never",) * 3,
    *("from_start",) * 2,
)
FUSER_SCHEDULES = schedules(ALIGNED_BATCHES, fp8_off=1, twice=False, other_recipes=True)
TORCH_AUTOCASTS = torch_autocasts()
FUSED_INPUTS = inputs(ALIGNED_BATCHES, ALIGNED_WIDTHS, gradient_layouts=SUMMABLE_GRADIENT_LAYOUTS)
FUSED_SCHEDULES = microbatches(schedules(ALIGNED_BATCHES, fp8_off=1, twice=False, other_recipes=True))


def jits(executor: Executor, entries: tuple[Entry, ...]) -> st.SearchStrategy[Jit]:
    """How the JIT is called. Shrinks to the first of ``entries`` under Thunder's default cache."""
    return st.builds(
        _jit,
        executor=st.just(executor),
        cache=st.sampled_from(["constant values", "constant values", "constant values", "no caching"]),
        entry=st.sampled_from(entries),
        names=st.sampled_from(["plain", "plain", "plain", "plain", "nested", "like_proxies", "colliding"]),
    )


def cases(executor: Executor, entries: tuple[Entry, ...] = ENTRIES) -> st.SearchStrategy[Case]:
    """A case for Thunder with ``executor`` first. Shrinks to one linear, one training step, TE's defaults."""
    return st.builds(
        _case,
        model=JIT_MODELS,
        given_input=TORCH_INPUTS if executor == "torch" else JIT_INPUTS,
        precision=precisions(current=executor == "transformer_engine", none=executor == "torch"),
        steps=JIT_SCHEDULES[executor],
        torch_autocast=TORCH_AUTOCASTS,
        jit=jits(executor, entries),
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
        torch_autocast=st.none(),
        jit=st.none(),
        fuser=st.builds(
            Fuser,
            hide_parameters=st.sampled_from(HIDINGS),
        ),
        seed=seeds,
    )


def fused_module_cases() -> st.SearchStrategy[Case]:
    """te.LayerNormLinear or te.LayerNormMLP against its parts. Shrinks to the former, one training step, TE's defaults.

    A fused module has a backward pass of its own, written by hand, that has to give what autograd gives for the parts:
    frozen parameters, a returned norm, FP8 weights, kept weights and calibration are branches in it.
    """
    return st.builds(
        _fused_module_case,
        model=fused_modules(ALIGNED_WIDTHS, PIPELINE_ACTIVATIONS),
        given_input=FUSED_INPUTS,
        precision=precisions(current=True, none=True),
        steps=FUSED_SCHEDULES,
        fp8_weights=st.sampled_from([False, False, False, True]),
        seed=seeds,
    )


def _fused_module_case(
    model: Model,
    given_input: Input,
    precision: Precision,
    steps: tuple[Step, ...],
    fp8_weights: bool,
    seed: int,
) -> Case:
    """What was drawn independently is made to fit together: the plainer value takes the place of an impossible one."""
    layers = model(given_input.features)
    steps = _each(steps, _same_parameters)
    if precision.recipe is None:
        steps = _each(steps, lambda step: _sgd(replace(step, recipe=None, calibrating=False)))
    else:
        steps = _each(steps, lambda step: _same_history(step, precision.recipe))
        if len(layers) != 3 or not isinstance(layers[1], ExtraOutput):
            # Kernels that write FP8 do not round to half precision before, as their parts do.
            given_input = replace(given_input, dtype="float32")
        if Activation(function="gelu_tanh") in layers:
            # Outside FP8 the MLP fuses GELU with its bias, and rounds otherwise than the activation by itself.
            steps = _each(steps, lambda step: replace(step, fp8=True, calibrating=False))
        if fp8_weights:
            # Weights that are FP8 already have nothing to calibrate, and no other kind of recipe.
            steps = _each(steps, lambda step: replace(step, recipe=None, calibrating=False))
    if given_input.dtype == "float16":
        steps = _each(steps, lambda step: replace(step, optimizer="none"))
    return Case(
        layers=layers,
        input=given_input,
        precision=precision,
        steps=steps,
        jit=None,
        fused_module=FusedModule(fp8_weights=fp8_weights and precision.recipe is not None),
        seed=seed,
    )


def _same_history(step: Step, recipe: Recipe | None) -> Step:
    """TE's modules do not survive another length of the history (docs/findings.md, "history-length-change")."""
    if isinstance(step.recipe, DelayedScaling):
        length = recipe.amax_history_len if isinstance(recipe, DelayedScaling) else DelayedScaling().amax_history_len
        return replace(step, recipe=replace(step.recipe, amax_history_len=length))
    return step


def _case(
    model: Model,
    given_input: Input,
    precision: Precision,
    jit: Jit | None,
    fuser: Fuser | None,
    steps: tuple[Step, ...],
    torch_autocast: Callable[[int], bool] | None,
    **rest: Any,
) -> Case:
    """What was drawn independently is made to fit together: the plainer value takes the place of an impossible one."""
    layers = model(given_input.features)
    if fuser is not None and fuser.hide_parameters == "fsdp":
        # Inside FSDP a frozen parameter is part of a flat one, and asks for its gradient in forward. After an exception
        # FSDP itself does not go on.
        layers = all_trainable(layers)
        steps = _each(steps, _undisturbed)
    if fuser is not None and fuser.hide_parameters == "never":
        precision = Precision(recipe=None)
        steps = _each(steps, _sgd)
    if jit is not None and jit.executor == "torch":
        steps = _each(steps, _sgd)
        if any(isinstance(layer, Dropout) for _, layer in walk(layers)):
            # Without grad Thunder calls torch's dropout, which draws in the order of memory.
            layers = without_transposed(layers)
            if given_input.layout == "transposed":
                given_input = replace(given_input, layout="strided")
    if jit is not None and jit.entry == "thunderfx":
        layers, torch_autocast = _for_thunderfx(layers), None
    if torch_autocast is not None:
        steps = tuple(
            replace(step, torch_autocast=True) if torch_autocast(index) else step for index, step in enumerate(steps)
        )
    if precision.recipe is None:
        steps = _each(steps, lambda step: step if step.recipe is None else replace(step, recipe=None))
    if given_input.dtype == "float16":
        # AdamW's eps is 0 there, and steps without loss scaling overflow: ReLU's gradient of NaN is anybody's choice.
        steps = _each(steps, lambda step: replace(step, optimizer="none"))
        if given_input.distribution in WIDE_DISTRIBUTIONS and any(_squares(layer) for _, layer in walk(layers)):
            given_input = replace(given_input, distribution="normal")
    if jit is not None and jit.entry == "grad":
        if any(isinstance(layer, ExtraOutput) for layer in layers):
            jit = replace(jit, entry="function")
        else:
            given_input = replace(given_input, requires_grad=True, batch=given_input.batch or (1,))
            layers = all_trainable(layers)
            steps = _each(steps, _grad_step)
    if jit is None or jit.entry == "module":
        steps = _each(steps, _same_parameters)
    if fuser is None or fuser.hide_parameters not in ("between_forward_and_backward", "from_start"):
        steps = _each(steps, _no_copy)
    if any(step.wrong_input for step in steps) and not any(map(_minds_width, layers)):
        steps = _each(steps, lambda step: replace(step, wrong_input=False))
    return Case(layers=layers, input=given_input, precision=precision, jit=jit, fuser=fuser, steps=steps, **rest)


def _for_thunderfx(layers: tuple[AnyLayer, ...], *, checkpointed: bool = False) -> tuple[AnyLayer, ...]:
    """What ThunderFX compiles: it leaves RMSNorm, and linears in autocast, to Inductor, and takes minutes to refuse a
    checkpointed region inside another one (docs/findings.md)."""
    kept: tuple[AnyLayer, ...] = ()
    for layer in layers:
        match layer:
            case Autocast():
                kept += _for_thunderfx(layer.body, checkpointed=checkpointed)
            case Checkpoint() if checkpointed:
                kept += _for_thunderfx(layer.body, checkpointed=True)
            case Residual() | Checkpoint() | NoGrad() | Cast():
                inside = checkpointed or isinstance(layer, Checkpoint)
                kept += (replace(layer, body=_for_thunderfx(layer.body, checkpointed=inside)),)
            case RMSNorm():
                kept += (LayerNorm(eps=layer.eps, zero_centered_gamma=layer.zero_centered_gamma),)
            case _:
                kept += (layer,)
    return kept


def _squares(layer: AnyLayer) -> bool:
    """Whether large values get larger by more than a factor: several such layers in a row overflow float16."""
    return isinstance(layer, GatedActivation) or layer == Activation(function="squared_relu")


def _grad_step(step: Step) -> Step:
    """What the entry `grad` can do. Of a bare vector it computes norms otherwise than a part by itself."""
    batch = (1,) if step.batch == () else step.batch
    return replace(step, mode="train", backward="now", gradients="none", trainable="all", batch=batch)


def _sgd(step: Step) -> Step:
    """AdamW divides by the size of the gradient: rounding errors of tiny ones become whole steps."""
    return replace(step, optimizer="sgd") if step.optimizer == "adamw" else step


def _each(steps: tuple[Step, ...], change: Callable[[Step], Step]) -> tuple[Step, ...]:
    return tuple(change(step) for step in steps)


def _undisturbed(step: Step) -> Step:
    backward = "now" if step.backward == "never" else step.backward
    return replace(step, wrong_input=False, trainable="all", backward=backward)


def _minds_width(layer: AnyLayer) -> bool:
    """Whether a layer, or one inside it, refuses an input of another width."""
    return any(isinstance(inner, Linear | LayerNorm | RMSNorm) for _, inner in walk((layer,)))


def _no_copy(step: Step) -> Step:
    """Thunder's modules cannot be deep-copied, and a copy of parameters alone is what loading makes."""
    return replace(step, before="load_state_dict") if step.before == "deepcopy" else step


def _same_parameters(step: Step) -> Step:
    return replace(step, before="load_state_dict") if step.before == "new_parameters" else step


def _jit(executor: Executor, cache: Any, entry: Any, names: Any) -> Jit:
    """Names of submodules need a module."""
    if names in ("nested", "colliding") and entry != "module":
        names = "plain"
    return Jit(executor=executor, cache=cache, entry=entry, names=names)
