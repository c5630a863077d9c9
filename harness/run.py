"""``run_case``: a case goes through the subject under test and its reference, and comes out as a verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from thunder.core import vjp_utils

from harness import fp8_globals, rounding
from harness.case import Case
from harness.checks import findings_of
from harness.checks.base import Finding, Run
from harness.checks.claims import te_linear_count
from harness.checks.exceptions import normalised, same_refusal
from harness.compare import Comparison, Exact
from harness.device import activate
from harness.subjects.base import Observation, Subject
from harness.subjects.eager_te_modules import EagerTeModules
from harness.subjects.eager_te_ops import EagerTeOps
from harness.subjects.eager_torch import EagerTorch
from harness.subjects.te_ops_pipeline import TeOpsPipeline, TeOpsPipelineHidden
from harness.subjects.thunder_te import ThunderTe
from harness.subjects.thunder_te_v1 import ThunderTeV1
from harness.subjects.thunder_torch import ThunderTorch

PAIRS: dict[str, tuple[type[Subject], type[Subject]]] = {
    "transformer_engine": (ThunderTe, EagerTeOps),
    "transformer_engine_v1": (ThunderTeV1, EagerTeModules),
    "torch": (ThunderTorch, EagerTorch),
    "fuser": (TeOpsPipelineHidden, TeOpsPipeline),
}
"""Subject under test and reference, by the executor of the JIT, or ``fuser`` for TE's operation fuser."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a case after it ran."""

    case: Case
    findings: tuple[Finding, ...]
    refusal: str | None
    """The exception with which both sides refused the case alike; None when both ran."""
    te_linears: int
    """Linears that TE ran, over all compiled specialisations."""
    seconds: dict[str, float] = field(compare=False)
    """Wall time by phase: ``subject``, ``reference``, ``checks``."""

    def raise_first(self) -> None:
        """Raise the strongest finding, if there is any."""
        if self.findings:
            raise self.findings[0]


def run_case(case: Case) -> Verdict:
    """Run ``case`` under both subjects and check it; global state is reset before each."""
    device = activate().device
    subject_class, reference_class = PAIRS["fuser" if case.jit is None else case.jit.executor]
    started = time.perf_counter()
    subject = _observe(subject_class(case, device))
    subject_done = time.perf_counter()
    reference = _observe(reference_class(case, device))
    reference_done = time.perf_counter()
    run = Run(case, subject, reference, _comparison(case))
    findings = tuple(findings_of(run))
    return Verdict(
        case=case,
        findings=findings,
        refusal=_refusal(subject, reference),
        te_linears=sum(te_linear_count(compilation.forward[-1]) for compilation in subject.compilations),
        seconds={
            "subject": subject_done - started,
            "reference": reference_done - subject_done,
            "checks": time.perf_counter() - reference_done,
        },
    )


def _observe(subject: Subject) -> Observation:
    reset_global_state()
    return subject.observe()


def reset_global_state() -> None:
    """Make the process forget earlier cases, so that a verdict does not depend on them."""
    # Forward/backward pairs by symbol and shape: two models would share symbols through it.
    vjp_utils._cache.clear()
    fp8_globals.reset()
    torch.manual_seed(0)
    torch.set_grad_enabled(True)


def _comparison(case: Case) -> Comparison:
    if case.jit is not None and case.jit.executor == "torch":
        return rounding.bounds(case)
    return Exact()


def _refusal(subject: Observation, reference: Observation) -> str | None:
    ours, theirs = subject.failure, reference.failure
    if ours is None or theirs is None or not same_refusal(ours, theirs):
        return None
    return f"{ours.stage}: {normalised(ours.error)}"
