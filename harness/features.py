"""Named features of a case: what known issues are tied to, and what a run's statistics count."""

from __future__ import annotations

from itertools import combinations, pairwise

from harness.case import (
    Activation,
    AnyLayer,
    Autocast,
    Case,
    Checkpoint,
    DelayedScaling,
    Dropout,
    ExtraOutput,
    Float8CurrentScaling,
    GatedActivation,
    InPlace,
    Linear,
    Rearrange,
    Region,
    Step,
    in_autocast,
    walk,
)


def features(case: Case) -> frozenset[str]:
    """All features that ``case`` has: ``layer:Linear``, ``recipe:DelayedScaling``, ``step:no_grad``..."""
    found = {
        f"dtype:{case.input.dtype}",
        f"distribution:{case.input.distribution}",
        f"rank:{len(case.input.batch) + 1}",
        f"layout:{case.input.layout}",
        f"gradient_layout:{case.input.gradient_layout}",
    }
    found.add("input:requires_grad" if case.input.requires_grad else "input:no_grad")
    recipe = case.precision.recipe
    found.add(f"recipe:{'none' if recipe is None else type(recipe).__name__}")
    found.add(f"recipe_object:{case.precision.recipe_object}")
    if case.jit is not None:
        found |= {f"executor:{case.jit.executor}", f"cache:{case.jit.cache}", f"entry:{case.jit.entry}"}
        found.add(f"names:{case.jit.names}")
        found |= {f"transform:{name}" for name in case.jit.transforms}
    if case.fuser is not None:
        found.add(f"hide_parameters:{case.fuser.hide_parameters}")
    if case.fused_module is not None:
        kind = "LayerNormLinear" if sum(isinstance(layer, Linear) for layer in case.layers) == 1 else "LayerNormMLP"
        found |= {f"fused_module:{kind}"} | ({"fp8_weights"} if case.fused_module.fp8_weights else set())
    found.add("steps:one" if len(case.steps) == 1 else "steps:several")
    batches = {step.batch or case.input.batch for step in case.steps}
    if len(batches) > 1:
        found.add("step:second shape")
    if any(0 in batch for batch in batches):
        found.add("batch:empty")
    for step in case.steps:
        found |= _step_features(step)
    if len({step.trainable for step in case.steps}) > 1:
        found.add("trainable:changes")
    found |= _autocast_features(case) | _recipe_features(case)
    for path, layer in walk(case.layers):
        found |= _layer_features(layer)
        if isinstance(layer, Region) and "." in path:
            found.add("nested region")
        if isinstance(layer, Checkpoint) and any(isinstance(inner, Dropout) for _, inner in walk(layer.body)):
            found.add("dropout in checkpoint")
        if isinstance(layer, Checkpoint) and any(isinstance(inner, InPlace) for _, inner in walk(layer.body)):
            found.add("in place in checkpoint")
    if case.input.layout != "contiguous" or "rearrange:transpose_twice" in found:
        found.add("non_contiguous")
    if sum(isinstance(layer, Dropout) for _, layer in walk(case.layers)) > 1:
        found.add("several dropouts")
    rows = [case.layers, *(layer.body for _, layer in walk(case.layers) if isinstance(layer, Region))]
    if any(a == b for row in rows for a, b in pairwise(row)):
        found.add("equal layers in a row")
    if _ends_checkpointed_in_place(case.layers):
        found.add("checkpoint that ends the model in place")
    return frozenset(found)


def _ends_checkpointed_in_place(layers: tuple[AnyLayer, ...]) -> bool:
    """Whether the model's output is what an operation in place at the end of a checkpointed region wrote to."""
    last: AnyLayer | None = next((layer for layer in reversed(layers) if not isinstance(layer, ExtraOutput)), None)
    checkpointed = isinstance(last, Checkpoint)
    while isinstance(last, Checkpoint):
        last = last.body[-1] if last.body else None
    # The result of relu_ is the same if it runs twice.
    return checkpointed and isinstance(last, InPlace) and last.operation != "relu_"


def _autocast_features(case: Case) -> set[str]:
    """Of ``torch.autocast``: around whole steps, around parts, and off in parts."""
    found = set()
    around = [step.torch_autocast for step in case.steps]
    regions = [layer for _, layer in walk(case.layers) if isinstance(layer, Autocast)]
    if any(around):
        found.add("torch_autocast:around the step")
    if any(before and not now for before, now in combinations(around, 2)):
        found.add("torch_autocast:switched off")
    if any(around) and not all(layer.enabled for layer in regions):
        found.add("torch_autocast:off inside")
    for step in case.steps:
        trains = step.mode == "train" and (step.trainable != "none" or case.input.requires_grad)
        if not trains and any(in_autocast(case.layers, step.torch_autocast)):
            found.add("torch_autocast:without grad")
    return found


def _recipe_features(case: Case) -> set[str]:
    """Of recipes that change from step to step."""
    found = set()
    recipes = [step.recipe or case.precision.recipe for step in case.steps]
    if any(step.recipe is not None for step in case.steps):
        found.add("step:another recipe")
    if case.precision.recipe_object == "new_each_step" or any(a != b for a, b in pairwise(recipes)):
        found.add("recipe_object:changes")
    kinds = [type(recipe) for recipe in recipes]
    if (Float8CurrentScaling, DelayedScaling) in combinations(kinds, 2):
        found.add("recipe:DelayedScaling after Float8CurrentScaling")
    return found


def _step_features(step: Step) -> set[str]:
    found = {f"step:{step.mode}"}
    if not step.fp8:
        found.add("step:fp8 off")
    if step.calibrating:
        found.add("step:calibrating")
    if step.first_microbatch is not None:
        found.add("step:first microbatch" if step.first_microbatch else "step:later microbatch")
    if step.gradients != "none":
        found.add(f"gradients:{step.gradients}")
    if step.backward != "now":
        found.add(f"backward:{step.backward}")
    if step.deferred or step.backward == "never":
        found.add("backward:late")
    if step.before != "nothing":
        found.add(f"before:{step.before}")
    if step.trainable != "all":
        found |= {f"trainable:{step.trainable}", "frozen"}
    if step.wrong_input:
        found.add("step:wrong input")
    if step.optimizer != "none":
        found.add(f"optimizer:{step.optimizer}")
    return found


def _layer_features(layer: AnyLayer) -> set[str]:
    found = {f"layer:{type(layer).__name__}"}
    if getattr(layer, "frozen", ()):
        found.add("frozen")
    if getattr(layer, "zero_centered_gamma", False):
        found.add("zero_centered_gamma")
    match layer:
        case Activation() | GatedActivation():
            found.add(f"activation:{layer.function}")
        case Linear():
            if layer.parameters != "own":
                found.add(f"parameters:{layer.parameters}")
            if layer.weight_operation != "none":
                found.add(f"weight_operation:{layer.weight_operation}")
        case Autocast() if not layer.enabled:
            found.add("autocast region that is off")
        case Rearrange():
            found.add(f"rearrange:{layer.how}")
        case InPlace():
            found.add(f"in_place:{layer.operation}")
        case ExtraOutput() if not layer.gradient:
            found.add("extra output without gradient")
    return found
