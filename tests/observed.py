"""Run a case as ``run_case`` does and keep what both sides gave.

As a script it prints the digest of the cases whose files are named, to compare with another process.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from packaging.version import Version

from harness.device import activate

activate()


from harness import run  # noqa: E402
from harness.case import Case, load_case  # noqa: E402
from harness.fingerprint import fingerprint  # noqa: E402
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


def digest(case: Case) -> str:
    """A hash of the verdict and of all bits that were observed."""
    verdict = run.run_case(case)
    for observation in (verdict.run.subject, verdict.run.reference):
        assert observation.steps, observation.failure
    return fingerprint(verdict)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(f"{digest(load_case(Path(argument)))}\n")
