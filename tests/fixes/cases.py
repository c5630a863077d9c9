"""Cases of the symptom tables, and how to judge one."""

from __future__ import annotations

import warnings

from harness.case import AnyLayer, Case, Executor, Input, Jit, Linear, Step
from harness.checks.base import Finding
from harness.fixes import reverted
from harness.run import run_case


def linear(width: int = 64) -> Linear:
    return Linear(out_features=width)


def jit_case(*layers: AnyLayer, executor: Executor, input_grad: bool = True, steps: int = 1) -> Case:
    return Case(
        layers=layers,
        input=Input(requires_grad=input_grad),
        steps=(Step(),) * steps,
        jit=Jit(executor=executor),
    )


def findings(case: Case, *reverts: str) -> tuple[Finding, ...]:
    """What the harness finds with ``reverts`` in force."""
    with reverted(reverts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Thunder's and TE's own
        verdict = run_case(case)
    assert verdict.refusal is None, f"both sides refuse: {verdict.refusal}"
    return verdict.findings


def kinds(found: tuple[Finding, ...]) -> set[str]:
    return {type(finding).__name__ for finding in found}
