"""Metamorphic relations: what must stay the same when the case is changed in a way that should not matter.

Each relation makes a follow-up case, which runs under the subject of the case; the two observations have to agree bit
for bit, but for what the relation says. No reference is needed, so a relation also sees errors that subject and
reference share (T. Y. Chen et al., "Metamorphic testing: a new approach for generating next test cases", 1998). A
follow-up costs another run, so each relation is for a sample of cases (``harness.sample``) without other findings.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.build import step_batch, trainable_parameters
from harness.case import (
    Activation,
    AnyLayer,
    Case,
    Cast,
    Checkpoint,
    DelayedScaling,
    Distribution,
    Dropout,
    Dtype,
    InPlace,
    LayerNorm,
    Linear,
    NoGrad,
    Rearrange,
    Region,
    Residual,
    RMSNorm,
    Transform,
    replace,
    walk,
)
from harness.checks.base import Evidence, Finding, Run, kind_at
from harness.compare import Exact, output_name
from harness.precision import differentiated, specialisation
from harness.subjects.base import LinearState, Observation, QuantizerState, StepObservation


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first place where the two observations do not agree."""

    where: str
    """For a bucket: independent of positions."""
    message: str
    layers: tuple[str, ...] = ()


class RelationViolated(Finding):
    """A metamorphic relation does not hold."""


class Relation(abc.ABC):
    """A change of the case, and what must not change with it."""

    finding: ClassVar[type[RelationViolated]]
    one_in: ClassVar[int]
    """One case in so many has to keep the relation."""
    forgets: ClassVar[bool] = True
    """Whether the process forgets the case before the follow-up runs."""

    @abc.abstractmethod
    def follow_up(self, case: Case) -> Case | None:
        """The changed case; None where the relation says nothing."""

    def disagreement(self, case: Case, first: Observation, second: Observation) -> Disagreement | None:
        """The first place where the relation does not hold: by default, where the observations differ at all."""
        for index, (ours, theirs) in enumerate(zip(first.steps, second.steps, strict=True)):
            if (found := different_step(case, index, ours, theirs)) is not None:
                return found
        return None

    def check(self, run: Run, second: Observation) -> Iterator[Finding]:
        """A finding when the follow-up disagrees. One that raises is a case of its own, which is drawn too."""
        if run.subject.failure is not None or second.failure is not None:
            return
        found = self.disagreement(run.case, run.subject, second)
        if found is not None:
            evidence = Evidence(layers=found.layers)
            yield self.finding(run, found.message, stage="follow-up", where=found.where, evidence=evidence)


def different_step(case: Case, index: int, ours: StepObservation, theirs: StepObservation) -> Disagreement | None:
    """The first difference of two observations of one step."""
    return (
        different_outputs(index, ours, theirs)
        or different_gradients(case, index, ours, theirs)
        or _states(index, ours, theirs)
    )


def different_outputs(index: int, ours: StepObservation, theirs: StepObservation) -> Disagreement | None:
    """The first output that differs."""
    for number, (here, there) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        if (difference := Exact().difference("", here, there)) is not None:
            name = output_name(number)
            return Disagreement(name.split(" #")[0], f"step {index}, {name}: {difference}")
    return None


def different_gradients(
    case: Case, index: int, ours: StepObservation, theirs: StepObservation, but: str = ""
) -> Disagreement | None:
    """The first gradient that differs, ``but`` for that of one parameter."""
    gradients: dict[str, tuple[Tensor | None, Tensor | None]] = {"input": (ours.input_gradient, theirs.input_gradient)}
    for name, value in ours.parameter_gradients.items():
        gradients[name] = (value, theirs.parameter_gradients[name])
    for name, (here, there) in gradients.items():
        if name == but or (here is None and there is None):
            continue
        path, _, leaf = name.rpartition(".")
        where = f"{kind_at(case, path)}.{leaf}" if path else name
        layers = (path,) if path else ()
        if here is None or there is None:
            return Disagreement(where, f"step {index}, gradient of {name}: None in one of two runs", layers)
        if (difference := Exact().difference("", here, there)) is not None:
            return Disagreement(where, f"step {index}, gradient of {name}: {difference}", layers)
    return None


def _states(index: int, ours: StepObservation, theirs: StepObservation) -> Disagreement | None:
    for path, state in ours.fp8_state.items():
        for tensor in state:
            if (difference := _state_difference(state, theirs.fp8_state.get(path, {}), tensor)) is not None:
                return Disagreement(f"FP8 state of {tensor}", f"step {index}, linear {path}, {difference}", (path,))
    return None


def _state_difference(ours: LinearState, theirs: LinearState, tensor: str) -> str | None:
    here: QuantizerState = ours[tensor]
    there = theirs.get(tensor)
    if there is None:
        return f"{tensor}: no FP8 state in the second run"
    for name in ("scale", "amax_history"):
        difference = Exact().difference("", getattr(here, name), getattr(there, name))
        if difference is not None:
            return f"{name} of {tensor}: {difference}"
    return None


class RepeatedRunDiffers(RelationViolated):
    """The same case gives something else when it runs again in the same process."""

    check: ClassVar[str] = "repeated run"
    promise: ClassVar[str] = "A model that is compiled and run again in the same process gives the same."


class RepeatedRun(Relation):
    """What the first run leaves in the process (caches, counters, states) must not reach the second."""

    finding = RepeatedRunDiffers
    one_in = 6
    forgets = False

    def follow_up(self, case: Case) -> Case | None:
        return case


class GradModeChangesOutput(RelationViolated):
    """The output of a training step is another one without grad."""

    check: ClassVar[str] = "output without grad"
    promise: ClassVar[str] = "Without grad a step gives the output that it gives with grad."


class OutputWithoutGrad(Relation):
    """The last step without grad: the same outputs, in all steps.

    For pipelines of te.ops: the JIT runs without TE when nothing is differentiated, and rounds otherwise.
    """

    finding = GradModeChangesOutput
    one_in = 2

    def follow_up(self, case: Case) -> Case | None:
        if case.fuser is None or case.fuser.hide_parameters == "fsdp" or case.steps[-1].mode != "train":
            return None
        last = replace(case.steps[-1], mode="no_grad", backward="now", optimizer="none")
        return replace(case, steps=(*case.steps[:-1], last))

    def disagreement(self, case: Case, first: Observation, second: Observation) -> Disagreement | None:
        index = len(case.steps) - 1
        return different_outputs(index, first.steps[index], second.steps[index])


class FrozenParameterMatters(RelationViolated):
    """A parameter that is frozen changes an output or another gradient."""

    check: ClassVar[str] = "frozen parameter"
    promise: ClassVar[str] = "Freezing a parameter changes no output and no other gradient."


class FrozenParameter(Relation):
    """One more frozen parameter: its gradient is gone, and nothing else is another."""

    finding = FrozenParameterMatters
    one_in = 5

    def follow_up(self, case: Case) -> Case | None:
        name = parameter_to_freeze(case)
        if name is None or (case.jit is not None and case.jit.entry == "grad"):
            return None
        # An optimizer would change another set of parameters.
        if any(step.optimizer != "none" for step in case.steps):
            return None
        path, _, leaf = name.rpartition(".")
        return replace(case, layers=_with_layer(case.layers, path.split("."), leaf))

    def disagreement(self, case: Case, first: Observation, second: Observation) -> Disagreement | None:
        name = parameter_to_freeze(case)
        assert name is not None
        for index, (ours, theirs) in enumerate(zip(first.steps, second.steps, strict=True)):
            found = different_outputs(index, ours, theirs) or different_gradients(case, index, ours, theirs, name)
            if found is not None:
                return Disagreement(found.where, f"with {name} frozen: {found.message}", found.layers)
        return None


def parameter_to_freeze(case: Case) -> str | None:
    """Chosen by the seed among the trainable parameters; None when only one is left to train or it is shared."""
    shared = any(isinstance(layer, Linear) and layer.parameters != "own" for _, layer in walk(case.layers))
    names = sorted(trainable_parameters(case))
    if shared or len(names) < 2:
        return None
    return names[case.seed // FrozenParameter.one_in % len(names)]


def _with_layer(layers: tuple[AnyLayer, ...], path: list[str], leaf: str) -> tuple[AnyLayer, ...]:
    """The layers, with ``leaf`` of the one at ``path`` frozen."""
    index = int(path[0])
    layer = layers[index]
    if isinstance(layer, Region):
        changed: AnyLayer = replace(layer, body=_with_layer(layer.body, path[1:], leaf))
    else:
        assert isinstance(layer, Linear | LayerNorm | RMSNorm)
        frozen = tuple(name for name in ("weight", "bias") if name == leaf or name in layer.frozen)
        changed = replace(layer, frozen=frozen)
    return (*layers[:index], changed, *layers[index + 1 :])


class RecomputationMatters(RelationViolated):
    """A model without checkpointed regions gives something else."""

    check: ClassVar[str] = "recomputation switched off"
    promise: ClassVar[str] = "Recomputation in backward changes no number."


class WithoutRecomputation(Relation):
    """Checkpointed regions become casts to the dtype that is there: the paths, and so the values, stay the same.

    Not for executor v1, which recomputes with the scales of the next step (a known issue), nor for random numbers.
    """

    finding = RecomputationMatters
    one_in = 2

    def follow_up(self, case: Case) -> Case | None:
        kinds = {type(layer) for _, layer in walk(case.layers)}
        if case.jit is None or case.jit.executor == "transformer_engine_v1":
            return None
        if Checkpoint not in kinds or Dropout in kinds:
            return None
        return replace(case, layers=_without_checkpoints(case.layers, case.input.dtype))


def _without_checkpoints(layers: tuple[AnyLayer, ...], dtype: Dtype) -> tuple[AnyLayer, ...]:
    def changed(layer: AnyLayer) -> AnyLayer:
        match layer:
            case Checkpoint():
                return Cast(dtype=dtype, body=_without_checkpoints(layer.body, dtype))
            case Cast():
                return replace(layer, body=_without_checkpoints(layer.body, layer.dtype))
            case Residual() | NoGrad():
                return replace(layer, body=_without_checkpoints(layer.body, dtype))
            case _:
                return layer

    return tuple(map(changed, layers))


class EntryMatters(RelationViolated):
    """A function gives something else than the module, or the ThunderFX function, with the same program."""

    check: ClassVar[str] = "function instead of module"
    promise: ClassVar[str] = "A jitted function gives what a module, or ThunderFX, gives for the same program."


class FunctionInsteadOfModule(Relation):
    """The same program as a function of its parameters."""

    finding = EntryMatters
    one_in = 4

    def follow_up(self, case: Case) -> Case | None:
        if case.jit is None or case.jit.entry not in ("module", "thunderfx"):
            return None
        if case.jit.names not in ("plain", "like_proxies"):
            return None
        if any(isinstance(layer, Dropout) for _, layer in walk(case.layers)):
            return None  # a function has no evaluation mode
        return replace(case, jit=replace(case.jit, entry="function"))


class TransformMatters(RelationViolated):
    """Transforms that change nothing change something, in front of those that the executor needs or behind them."""

    check: ClassVar[str] = "further transforms"
    promise: ClassVar[str] = "A transform that folds constants or eliminates dead code changes no result, in any order."


class FurtherTransforms(Relation):
    """Two transforms of the user, one before that of executor v2 and one after it."""

    finding = TransformMatters
    one_in = 8

    def follow_up(self, case: Case) -> Case | None:
        if case.jit is None or case.jit.transforms:
            return None
        first: tuple[Transform, ...] = ("constant_folding", *case.jit.all_transforms, "dead_code_elimination")
        order = first if case.seed // self.one_in % 2 else first[::-1]
        return replace(case, jit=replace(case.jit, transforms=order))


class NotHomogeneous(RelationViolated):
    """A model of linears and ReLU does not give 2^8 times the output for 2^8 times the input."""

    check: ClassVar[str] = "scaled input"
    promise: ClassVar[str] = "FP8 scales follow the input: 2^8 times the input gives 2^8 times the output, bit for bit."


LARGER: dict[Distribution, Distribution] = {"normal": "large", "small": "normal"}
"""Distributions whose values are 2^8 times those of another one."""
FACTOR = 2.0**8


class ScaledInput(Relation):
    """Input times a power of two, through layers that commute with it.

    A scale follows the amax, so the quantised bits stay the same. Under delayed scaling that holds for a single linear
    from the second step of a specialisation on: in the first one the scale is 1, and what the linear makes of its
    coarse input is in the history of the next. Not in float16, whose range ends too early.
    """

    finding = NotHomogeneous
    one_in = 1

    def follow_up(self, case: Case) -> Case | None:
        if case.input.distribution not in LARGER or case.input.dtype == "float16":
            return None
        if any(step.optimizer != "none" for step in case.steps) or not all(map(_commutes, case.layers)):
            return None
        if is_delayed(case) and sum(isinstance(layer, Linear) for _, layer in walk(case.layers)) > 1:
            return None
        return replace(case, input=replace(case.input, distribution=LARGER[case.input.distribution]))

    def disagreement(self, case: Case, first: Observation, second: Observation) -> Disagreement | None:
        scaled_before: set[object] = set()
        for index, (ours, theirs) in enumerate(zip(first.steps, second.steps, strict=True)):
            step = case.steps[index]
            own = specialisation(case, index) if case.jit is not None else step_batch(case, index)
            key = (own, step.mode, step.fp8)
            if not (is_delayed(case) and key not in scaled_before):
                scaled = tuple(output * FACTOR for output in ours.outputs)
                for number, (here, there) in enumerate(zip(scaled, theirs.outputs, strict=True)):
                    if (difference := Exact().difference("", there, here)) is not None:
                        name = output_name(number)
                        message = f"step {index}, {name} for an input times {FACTOR:g}: {difference}"
                        return Disagreement(name.split(" #")[0], message)
            # Eager TE moves scales on when an autocast region of a step with grad ends, Thunder after every linear.
            updates = case.jit is not None or differentiated(case, index)
            if updates and not step.wrong_input:
                scaled_before.add(key)
        return None


def is_delayed(case: Case) -> bool:
    """Whether scales come from earlier steps."""
    return isinstance(case.precision.recipe, DelayedScaling)


def _commutes(layer: AnyLayer) -> bool:
    """Whether a layer gives 2^8 times the output for 2^8 times the input."""
    match layer:
        case Linear():
            return not layer.bias
        case Activation():
            return layer.function == "relu"
        case InPlace():
            return layer.operation != "add_"
        case Rearrange() | Dropout():
            return True
        case Residual() | Checkpoint() | NoGrad():
            return all(map(_commutes, layer.body))
        case Cast():
            return layer.dtype != "float16" and all(map(_commutes, layer.body))
        case _:
            return False


RELATIONS: tuple[Relation, ...] = (
    OutputWithoutGrad(),
    ScaledInput(),
    WithoutRecomputation(),
    FrozenParameter(),
    FunctionInsteadOfModule(),
    FurtherTransforms(),
    RepeatedRun(),
)
"""The cheapest first."""
