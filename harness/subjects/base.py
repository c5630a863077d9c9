"""What every way of running a case has in common: the loop over steps, and what is observed."""

from __future__ import annotations

import abc
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
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

    output: Tensor | None
    """None when the entry gives gradients only."""
    output_requires_grad: bool
    input_unchanged: bool
    input_gradient: Tensor | None
    parameter_gradients: Mapping[str, Tensor | None]
    fp8_state: Mapping[str, LinearState]
    """By the path of the linear in the case; a linear that TE does not run has no entry."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Traces of one specialisation that the JIT compiled, oldest first. Elements are Thunder's ``TraceCtx``."""

    step: int
    forward: tuple[Any, ...]
    backward: tuple[Any, ...]


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
        """Build modules (and wrap them in the JIT). Runs once, before the first step."""

    @abc.abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The leaf tensors by their name in the case."""

    @abc.abstractmethod
    def forward(self, index: int, x: Tensor) -> Tensor:
        """The output of step ``index`` for input ``x`` of shape [*batch, features]."""

    def set_training(self, training: bool) -> None:  # noqa: B027 - subjects without modules have no mode
        """Switch the modules between training and evaluation mode."""

    def before_backward(self, index: int) -> AbstractContextManager[None]:
        """A context around the backward pass of step ``index``."""
        return nullcontext()

    def around_step(self, index: int) -> AbstractContextManager[None]:
        """A context around all of step ``index``."""
        return nullcontext()

    def fp8_state(self, index: int) -> Mapping[str, LinearState]:
        """The FP8 state after step ``index``, by path of the linear."""
        return {}

    def compilations(self) -> list[Compilation]:
        """What the JIT has compiled so far."""
        return []

    def observe(self) -> Observation:
        """Run all steps. An exception of the subject ends the run and is part of the observation."""
        observation = Observation(self.name)
        try:
            # What the subject warns of is no finding, and must not become an exception inside it under `-W error`.
            with _environment(self.environment), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with _guard("preparation"):
                    self.prepare()
                for index, step in enumerate(self.case.steps):
                    with self.around_step(index):
                        observation.steps.append(self._observe_step(index, step))
        except _Failed as failed:
            observation.failure = failed.failure
        observation.compilations = self.compilations()
        return observation

    def gradients_only(self, index: int, x: Tensor) -> None:
        """Leave the gradients of the sum of the output in ``.grad`` of ``x`` and of the parameters."""
        output = self.forward(index, x)
        output.backward(torch.ones_like(output))

    def _observe_step(self, index: int, step: Step) -> StepObservation:
        train = step.mode == "train"
        values = build.make_input(self.case, index).to(self.device)
        x = values.clone().requires_grad_(train and self.case.input.requires_grad)
        for parameter in self.parameters().values():
            parameter.grad = None
        self.set_training(step.mode != "eval")
        if self.case.jit is not None and self.case.jit.entry == "grad":
            output = None
            with _guard(f"gradients of step {index}"):
                self.gradients_only(index, x)
        else:
            output = self._forward_and_backward(index, x, train)
        return StepObservation(
            output=_copy(output),
            output_requires_grad=output is not None and output.requires_grad,
            input_unchanged=torch.equal(x.detach(), values),
            input_gradient=_copy(x.grad),
            parameter_gradients={name: _copy(p.grad) for name, p in self.parameters().items()},
            fp8_state=self.fp8_state(index),
        )

    def _forward_and_backward(self, index: int, x: Tensor, train: bool) -> Tensor:
        with _guard(f"forward of step {index}"), torch.set_grad_enabled(train):
            output = self.forward(index, x)
        if train and output.requires_grad:
            gradient = build.make_output_gradient(self.case, index).to(self.device)
            with _guard(f"backward of step {index}"), self.before_backward(index):
                output.backward(gradient)
        return output


def leaf_parameters(case: Case, device: str) -> dict[str, nn.Parameter]:
    """Fresh parameters of the case by name; frozen ones do not require grad."""
    frozen = build.frozen_parameters(case.layers)
    return {
        name: nn.Parameter(value.to(device), requires_grad=name not in frozen)
        for name, value in build.make_parameters(case).items()
    }


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
