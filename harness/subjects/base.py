"""What every way of running a case has in common: the loop over steps, and what is observed."""

from __future__ import annotations

import abc
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness import build
from harness.case import Case, Step


@dataclass(frozen=True, slots=True)
class QuantizerState:
    """Delayed-scaling state of one quantised tensor: ``scale`` of shape [], ``amax_history`` of shape [length]."""

    scale: Tensor
    amax_history: Tensor
    format: str
    """What its quantizer casts to: ``E4M3`` or ``E5M2``."""
    own_columns: bool
    """Whether its quantizer reads this scale and writes into this history."""


LinearState = Mapping[str, QuantizerState]
"""State of one linear by the tensor that is quantised: ``input``, ``weight``, ``grad_output``."""


@dataclass(frozen=True, slots=True)
class StepObservation:
    """What one step gave. All tensors are detached copies."""

    outputs: tuple[Tensor, ...]
    """The last layer's output and then the extra ones; empty when the entry gives gradients only."""
    outputs_require_grad: tuple[bool, ...]
    input_unchanged: bool
    input_gradient: Tensor | None
    """As it is after the last step: a backward may be deferred."""
    parameter_gradients: Mapping[str, Tensor | None]
    """As they are after this step, before the optimizer changes anything."""
    fp8_state: Mapping[str, LinearState]
    """By the path of the linear in the case; a linear that TE does not run has no entry."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Traces of one specialisation that the JIT compiled, oldest first. Elements are Thunder's ``TraceCtx``."""

    step: int
    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    finished: bool = True
    """False when the step that compiled it raised: the last traces may be those of a pass in the middle."""


@dataclass(frozen=True, slots=True)
class SubjectFailure:
    """An exception that left the subject."""

    stage: str
    error: Exception
    stack: str


@dataclass(slots=True)
class Observation:
    """Everything seen while a subject ran a case."""

    subject: str
    steps: list[StepObservation] = field(default_factory=list)
    compilations: list[Compilation] = field(default_factory=list)
    failure: SubjectFailure | None = None
    left_to_inductor: tuple[tuple[str, str], ...] = ()
    """Operations that ThunderFX did not give to Thunder, with its reason for each."""


class _Failed(BaseException):
    """Carries a ``SubjectFailure`` out of the loop; never leaves this module."""

    def __init__(self, failure: SubjectFailure) -> None:
        self.failure = failure


class Subject(abc.ABC):
    """One way to run a case. Create it anew for each run: subjects keep FP8 state."""

    name: ClassVar[str]
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables while the subject runs."""

    def __init__(self, case: Case, device: str) -> None:
        self.case = case
        self.device = device

    @abc.abstractmethod
    def prepare(self) -> None:
        """Build modules around the parameters (and wrap them in the JIT). Runs once, before the first step."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The leaf tensors by their name in the case; frozen ones do not require grad."""
        return self._parameters

    @abc.abstractmethod
    def forward(self, index: int, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The output of step ``index`` for input ``x`` of shape [*batch, features]; a tuple with extra outputs."""

    def set_training(self, training: bool) -> None:  # noqa: B027 - subjects without modules have no mode
        """Switch the modules between training and evaluation mode."""

    def input_values(self, index: int) -> Tensor:
        """The input of step ``index`` on the device, contiguous."""
        return build.make_input(self.case, index).to(self.device)

    def output_gradient(self, index: int, output: int) -> Tensor:
        """The gradient of an output of step ``index`` on the device."""
        return build.make_output_gradient(self.case, index, output).to(self.device)

    def parameter_values(self, index: int | None) -> dict[str, Tensor]:
        """The initial values of the parameters on the device, or those that step ``index`` loads."""
        return {name: value.to(self.device) for name, value in build.make_parameters(self.case, index).items()}

    def wrong_call(self, index: int, x: Tensor) -> None:  # noqa: B027
        """Call the model for an ``x`` that is too wide. Where TE's modules keep state, what ran before the exception is
        in it; any other reference does not run such a step, which has to leave no trace."""

    def deep_copy(self) -> None:  # noqa: B027 - for a reference, a deep copy is as good as the original
        """Go on with a deep copy of all modules."""

    def optimized(self) -> None:  # noqa: B027 - most subjects need not know
        """Called after an optimizer changed the parameters."""

    def before_backward(self, index: int) -> AbstractContextManager[None]:
        """A context around the backward pass of step ``index``."""
        return nullcontext()

    def finish_backward(self) -> None:  # noqa: B027 - most subjects leave all to autograd
        """Called after autograd's backward, inside the same contexts."""

    def around_step(self, index: int) -> AbstractContextManager[None]:
        """A context around the forward of step ``index``, and around its backward."""
        return nullcontext()

    def torch_autocast(self, index: int) -> AbstractContextManager[Any]:
        """``torch.autocast`` around the forward of step ``index``, where the case asks for it."""
        if not self.case.steps[index].torch_autocast:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.device, dtype=build.AUTOCAST_DTYPE)
        return context

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        """The FP8 state after step ``index``, by path of the linear."""
        return {}

    def compilations(self) -> list[Compilation]:
        """What the JIT has compiled so far."""
        return []

    def left_to_inductor(self) -> tuple[tuple[str, str], ...]:
        """Operations that the JIT did not compile itself, with its reason for each."""
        return ()

    def observe(self, until: Callable[[Compilation], bool] | None = None) -> Observation:
        """Run all steps. An exception of the subject ends the run and is part of the observation.

        ``until`` sees what each step compiled; when it is satisfied, no further step is run.
        """
        observation = Observation(self.name)
        inputs: list[Tensor] = []
        try:
            # What the subject warns of is no finding, and must not become an exception inside it under `-W error`.
            with _environment(self.environment), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with _guard("preparation"):
                    self._parameters = self._new_parameters(None)
                    self.prepare()
                self._observe_steps(observation.steps, inputs, until)
        except _Failed as failed:
            observation.failure = failed.failure
        observation.steps = [
            replace(step, input_gradient=_copy(x.grad)) for step, x in zip(observation.steps, inputs, strict=False)
        ]
        observation.compilations = self.compilations()
        observation.left_to_inductor = self.left_to_inductor()
        return observation

    def gradients_only(self, index: int, x: Tensor) -> None:
        """Leave the gradients of the sum of the output in ``.grad`` of ``x`` and of the parameters."""
        output = self.forward(index, x)
        assert isinstance(output, Tensor), "the entry `grad` has one output"
        output.backward(torch.ones_like(output))
        self.finish_backward()

    def _observe_steps(
        self,
        observed: list[StepObservation],
        inputs: list[Tensor],
        until: Callable[[Compilation], bool] | None,
    ) -> None:
        optimizers = Optimizers()
        waiting: list[_Forward] = []
        for index, step in enumerate(self.case.steps):
            if step.before != "nothing":
                self._change_parameters(index, step.before)
                optimizers = Optimizers()
            self._freeze(index)
            _clear(self.parameters().values(), step.gradients)
            values = self.input_values(index)
            x = build.laid_out(values.clone(), self.case.input.layout)
            inputs.append(x.requires_grad_(step.mode == "train" and self.case.input.requires_grad))
            outputs = self._run_step(index, step, x, waiting)
            observed.append(
                StepObservation(
                    outputs=tuple(output.detach().clone() for output in outputs),
                    outputs_require_grad=tuple(output.requires_grad for output in outputs),
                    input_unchanged=torch.equal(x.detach(), values),
                    input_gradient=None,
                    parameter_gradients={name: _copy(p.grad) for name, p in self.parameters().items()},
                    fp8_state={} if step.wrong_input else self.fp8_state(index),
                )
            )
            if step.optimizer != "none":
                optimizers.step(step.optimizer, self.parameters().values())
                self.optimized()
            new = [compilation for compilation in self.compilations() if compilation.step == index]
            if until is not None and any(map(until, new)):
                return

    def _run_step(self, index: int, step: Step, x: Tensor, waiting: list[_Forward]) -> tuple[Tensor, ...]:
        """Forward and backward of one step, and the backward of an earlier one that waited for it."""
        self.set_training(step.mode != "eval")
        if step.wrong_input:
            self._fail(index, step, x)
            outputs: tuple[Tensor, ...] = ()
        elif self.case.jit is not None and self.case.jit.entry == "grad":
            with self.around_step(index), _guard(f"gradients of step {index}"):
                torch.manual_seed(build.dropout_seed(self.case, index))
                self.gradients_only(index, x)
            return ()
        else:
            with self.around_step(index), _guard(f"forward of step {index}"), _grad_mode(step.mode):
                torch.manual_seed(build.dropout_seed(self.case, index))
                output = self.forward(index, x)
            outputs = (output,) if isinstance(output, Tensor) else output
        own = [_Forward(index, outputs)] if step.mode == "train" and outputs and step.backward != "never" else []
        late = step.deferred and index + 1 < len(self.case.steps)
        first = [forward for forward in waiting if self.case.steps[forward.index].backward == "after_next_forward"]
        rest = [forward for forward in waiting if forward not in first]
        for forward in (*first, *([] if late else own), *rest):
            self._backward(forward)
        waiting[:] = own if late else []
        return outputs

    def _fail(self, index: int, step: Step, x: Tensor) -> None:
        """A step whose forward raises, and a caller who goes on."""
        wide = torch.cat([x.detach(), x.detach()], dim=-1).requires_grad_(x.requires_grad)
        with suppress(Exception), self.around_step(index), _grad_mode(step.mode):
            torch.manual_seed(build.dropout_seed(self.case, index))
            self.wrong_call(index, wide)

    def _backward(self, forward: _Forward) -> None:
        roots = [
            (output, self.output_gradient(forward.index, number).to(output.dtype))
            for number, output in enumerate(forward.outputs)
            if output.requires_grad and build.receives_gradient(self.case, number)
        ]
        if not roots:
            return
        tensors, gradients = zip(*roots, strict=True)
        times = 2 if self.case.steps[forward.index].backward == "twice" else 1
        for time in range(times):
            with (
                self.around_step(forward.index),
                _guard(f"backward of step {forward.index}"),
                self.before_backward(forward.index),
            ):
                torch.autograd.backward(tensors, gradients, retain_graph=time + 1 < times)
                self.finish_backward()

    def _change_parameters(self, index: int, how: str) -> None:
        if how == "new_parameters":
            self._parameters = self._new_parameters(index)
            return
        if how == "deepcopy":
            self.deep_copy()
            return
        values = self.parameter_values(index)
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(values[name])

    def _freeze(self, index: int) -> None:
        trainable = build.trainable_parameters(self.case, index)
        for name, parameter in self.parameters().items():
            if parameter.requires_grad != (name in trainable):
                parameter.requires_grad_(name in trainable)

    def _new_parameters(self, index: int | None) -> dict[str, nn.Parameter]:
        trainable = build.trainable_parameters(self.case)
        values = self.parameter_values(index)
        return {name: nn.Parameter(value, requires_grad=name in trainable) for name, value in values.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """A forward whose backward is still to come."""

    index: int
    outputs: tuple[Tensor, ...]


class Optimizers:
    """torch's optimizers over one set of parameters, made when a step first asks for one."""

    def __init__(self) -> None:
        self._made: dict[str, torch.optim.Optimizer] = {}

    def step(self, name: str, parameters: Iterable[Tensor]) -> None:
        """Change the parameters that have a gradient by the optimizer ``name``."""
        if name not in self._made:
            trainable = [parameter for parameter in parameters if parameter.requires_grad]
            if not trainable:
                return
            # One tensor at a time: the fused forms are torch's business, not that of the subjects.
            self._made[name] = (
                torch.optim.SGD(trainable, lr=2.0**-6, momentum=0.5, foreach=False)
                if name == "sgd"
                else torch.optim.AdamW(trainable, lr=2.0**-6, foreach=False)
            )
        self._made[name].step()


def _clear(parameters: Iterable[Tensor], how: str) -> None:
    """What ``zero_grad`` does before a step, with and without ``set_to_none``; nothing to accumulate gradients."""
    for parameter in parameters:
        if how == "none":
            parameter.grad = None
        elif how == "zeroed" and parameter.grad is not None:
            parameter.grad.zero_()


def _grad_mode(mode: str) -> AbstractContextManager[Any]:
    if mode == "inference":
        return torch.inference_mode()
    return torch.set_grad_enabled(mode == "train")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _guard(stage: str) -> Iterator[None]:
    try:
        yield
    # The subject may raise anything; only its own calls are inside this guard.
    except Exception as error:
        raise _Failed(SubjectFailure(stage, error, traceback.format_exc())) from error


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
