"""``run_case``: a case goes through the subject under test and its reference, and comes out as a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from thunder.core import vjp_utils
from thunder.core.compile_data import set_compile_data_and_stats
from thunder.core.trace import set_tracectx

from harness import fp8_globals, growth, rounding
from harness.case import Case
from harness.checks import CHECKS, CHECKS_BUT_TRACES, TRACE_CHECKS, findings_of
from harness.checks.base import Finding, Run
from harness.checks.claims import te_linear_count
from harness.checks.exceptions import normalised, same_refusal
from harness.compare import Comparison, Exact
from harness.device import activate
from harness.interrupts import interrupts_kept
from harness.metamorphic import RELATIONS
from harness.sample import has_one_precision, in_sample
from harness.subjects.base import Compilation, Observation, Subject
from harness.subjects.eager_te_modules import EagerTeModules
from harness.subjects.eager_te_ops import EagerTeOps
from harness.subjects.eager_torch import EagerTorch
from harness.subjects.float64 import OverflowsError
from harness.subjects.te_fused_module import TeFusedModule, TeModulesOneByOne
from harness.subjects.te_ops_fsdp import TeOpsFsdp
from harness.subjects.te_ops_pipeline import TeOpsPipeline, TeOpsPipelineHidden
from harness.subjects.thunder_te import ThunderTe
from harness.subjects.thunder_te_v1 import ThunderTeV1
from harness.subjects.thunder_torch import ThunderTorch

PAIRS: dict[str, tuple[type[Subject], type[Subject]]] = {
    "transformer_engine": (ThunderTe, EagerTeOps),
    "transformer_engine_v1": (ThunderTeV1, EagerTeModules),
    "torch": (ThunderTorch, EagerTorch),
    "fuser": (TeOpsPipelineHidden, TeOpsPipeline),
    "fsdp": (TeOpsFsdp, TeOpsPipeline),
    "te_ops": (TeOpsPipeline, EagerTorch),
    "fused_module": (TeFusedModule, TeModulesOneByOne),
}
"""Subject under test and reference, by ``pair_name``."""


def pair_name(case: Case) -> str:
    """The executor of the JIT; for TE's operation fuser ``fuser``, or ``fsdp`` when FSDP hides the parameters.

    A pipeline whose parameters stay in place would be compared with itself. Without FP8 there is something better:
    ``te_ops``, the pipeline against plain torch.
    """
    if case.jit is not None:
        return case.jit.executor
    if case.fused_module is not None:
        return "fused_module"
    assert case.fuser is not None
    if case.fuser.hide_parameters == "never" and case.precision.recipe is None:
        return "te_ops"
    return "fsdp" if case.fuser.hide_parameters == "fsdp" else "fuser"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a case after it ran."""

    case: Case
    findings: tuple[Finding, ...]
    refusal: str | None
    """Why nothing but traces was compared: both sides raised alike, or values overflow; None when all was compared."""
    te_linears: int
    """Linears that TE ran, over all compiled specialisations."""
    seconds: dict[str, float] = field(compare=False)
    """Wall time by phase: ``subject``, ``reference``, ``checks``, ``follow-ups``."""
    run: Run = field(compare=False, repr=False)
    """What was observed, for reports. The reference is empty where it did not run."""

    def without_observations(self) -> Verdict:
        """What is worth remembering of a case that may come again: no tensors, no traces, no times."""
        subject, reference = Observation(self.run.subject.subject), Observation(self.run.reference.subject)
        return replace(self, seconds={}, run=Run(self.case, subject, reference, Exact()))

    def raise_first(self) -> None:
        """Raise the strongest finding, if there is any."""
        if self.findings:
            raise self.findings[0]


def run_case(case: Case, *, thorough: bool = True) -> Verdict:
    """Run ``case`` under both subjects and check it; global state is reset before each.

    Without ``thorough`` the traces of the subject are checked as they are compiled; when they show a finding, neither
    further steps nor the reference are run: the fuzzer wants the first finding only.
    """
    device = activate().device
    subject_class, reference_class = PAIRS[pair_name(case)]
    clock = _Clock()
    reference = Observation(reference_class.name)

    in_traces: list[Finding] = []

    def watch(new: Compilation) -> bool:
        observed = Observation(subject_class.name, compilations=[new])
        in_traces.extend(findings_of(Run(case, observed, reference, Exact()), TRACE_CHECKS))
        return bool(in_traces)

    subject = _observe(subject_class(case, device), None if thorough else watch)
    clock.lap("subject")
    # What a failing step compiled was not watched.
    watched = not thorough and subject.failure is None
    findings = tuple(in_traces) if watched else ()
    comparison, overflow = (Exact(), None) if findings else _comparison(case, device)
    run = Run(case, subject, reference, comparison)
    if overflow and not watched:
        findings = findings_of(run, TRACE_CHECKS)
    if not overflow and not findings:
        reference = _observe(reference_class(case, device))
        clock.lap("reference")
        run = Run(case, subject, reference, comparison)
        findings = findings_of(run, CHECKS_BUT_TRACES if watched else CHECKS)
        clock.lap("checks")
    if not overflow and not findings:
        findings = tuple(_relation_findings(run, device))
        clock.lap("follow-ups")
    return Verdict(
        case=case,
        findings=findings,
        refusal=overflow or _refusal(subject, reference),
        te_linears=sum(te_linear_count(compilation.forward[-1]) for compilation in subject.compilations),
        seconds=clock.seconds,
        run=run,
    )


def _relation_findings(run: Run, device: str) -> Iterator[Finding]:
    """The findings of the first metamorphic relation that does not hold, or of what repeated runs leave behind."""
    if run.subject.failure is not None or not has_one_precision(run.case):
        return
    for relation in RELATIONS:
        follow_up = relation.follow_up(run.case) if in_sample(run.case, relation.one_in) else None
        if follow_up is None:
            continue
        subject_class, _ = PAIRS[pair_name(follow_up)]
        findings = list(relation.check(run, _observe(subject_class(follow_up, device), forget=relation.forgets)))
        if findings:
            yield from findings
            return
    # torch's FSDP itself leaves tensors behind with every model.
    if in_sample(run.case, growth.ONE_CASE_IN) and pair_name(run.case) != "fsdp":
        subject_class, _ = PAIRS[pair_name(run.case)]
        yield from growth.check(run, lambda: subject_class(run.case, device).observe())


class _Clock:
    """Wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap as ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


def _observe(
    subject: Subject, until: Callable[[Compilation], bool] | None = None, *, forget: bool = True
) -> Observation:
    if forget:
        reset_global_state()
    else:
        reset_but_thunder()
    with interrupts_kept():
        return subject.observe(until)


def reset_global_state() -> None:
    """Make the process forget earlier cases, so that a verdict does not depend on them."""
    # Forward/backward pairs by symbol and shape: two models would share symbols through it.
    vjp_utils._cache.clear()
    # A program that raised while it was traced may have left these behind.
    set_tracectx(None)
    set_compile_data_and_stats(None, None)
    reset_but_thunder()


def reset_but_thunder() -> None:
    """Make TE and torch forget, and leave what Thunder keeps: models of one process must not meet in it."""
    fp8_globals.reset()
    torch.manual_seed(0)
    torch.set_grad_enabled(True)


def _comparison(case: Case, device: str) -> tuple[Comparison, str | None]:
    """The rule for the case's tensors, or why they cannot be compared."""
    pair = pair_name(case)
    fused_without_fp8 = pair == "fused_module" and case.precision.recipe is None
    if pair not in ("torch", "te_ops") and not fused_without_fp8:
        return Exact(), None
    # TE multiplies float32 matrices in TF32 (common/gemm/cublaslt_gemm.cu).
    in_tf32 = pair != "torch" and device == "cuda" and case.input.dtype == "float32"
    unit_roundoff = rounding.TF32_ROUNDOFF if in_tf32 else None
    try:
        return rounding.bounds(case, unit_roundoff), None
    except OverflowsError as error:
        return Exact(), f"no comparison: values overflow {error.dtype}"


def _refusal(subject: Observation, reference: Observation) -> str | None:
    ours, theirs = subject.failure, reference.failure
    if ours is None or theirs is None or not same_refusal(ours, theirs):
        return None
    return f"{ours.stage}: {normalised(ours.error)}"
