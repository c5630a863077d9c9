"""Run a case as ``run_case`` does and keep what both sides gave.

As a script it prints the digest of the cases whose files are named, to compare with another process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from packaging.version import Version

from harness.device import activate

activate()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from harness import run  # noqa: E402
from harness.case import Case, load_case  # noqa: E402
from harness.subjects.base import Compilation, Observation, StepObservation, Subject  # noqa: E402

V1_WORKS = Version(importlib.metadata.version("transformer_engine")) < Version("2.10")
"""Thunder's v1 executor imports what later releases of TE no longer have."""


def observe(case: Case, edit: Callable[[Observation], None] | None = None) -> tuple[run.Verdict, list[Observation]]:
    """The verdict, and the observations of subject and reference; ``edit`` may falsify those of the subject."""
    observations: list[Observation] = []
    real = run._observe

    def observing(subject: Subject, until: Callable[[Compilation], bool] | None = None) -> Observation:
        observation = real(subject, until)
        if edit is not None and not observations:
            edit(observation)
        observations.append(observation)
        return observation

    with mock.patch.object(run, "_observe", observing):
        return run.run_case(case), observations


def edit_step(index: int, change: Callable[[StepObservation], dict[str, Any]]) -> Callable[[Observation], None]:
    """An edit that replaces fields of one step."""

    def edit(observation: Observation) -> None:
        step = observation.steps[index]
        observation.steps[index] = replace(step, **change(step))

    return edit


def tensors(observation: Observation) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that was observed, with a name."""
    for index, step in enumerate(observation.steps):
        for number, output in enumerate(step.outputs):
            yield f"{index} output {number}", output
        for name, gradient in {"input": step.input_gradient, **step.parameter_gradients}.items():
            if gradient is not None:
                yield f"{index} gradient {name}", gradient
        for path, states in step.fp8_state.items():
            for name, state in states.items():
                yield f"{index} scale {path} {name}", state.scale
                yield f"{index} amax {path} {name}", state.amax_history


def digest(case: Case) -> str:
    """A hash of the verdict and of all bits that were observed."""
    verdict, observations = observe(case)
    text = hashlib.sha256()
    for finding in verdict.findings:
        text.update(str(finding.bucket).encode())
    text.update(f"{verdict.refusal} {verdict.te_linears}".encode())
    for observation in observations:
        assert observation.steps, observation.failure
        for name, tensor in tensors(observation):
            text.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
            text.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(f"{digest(load_case(Path(argument)))}\n")
