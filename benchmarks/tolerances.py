"""Fixed tolerances against tefuzz' own rules: false alarms and missed mutants, on the same cases.

    python benchmarks/tolerances.py --cases 150 --mutant-cases 24

A test with a fixed tolerance runs the jitted model and eager torch with eager TE linears, and compares outputs and
gradients with rtol and atol. Here each drawn case that tefuzz finds nothing in runs that way too: what then exceeds a
tolerance is a false alarm. Then each mutant is put in force and the first of the cases run again. A rule misses it if
no case on which the rule was silent before is a failure now.

The table is printed at the end; each mutant is reported as soon as it is done.
"""

# ruff: noqa: E402  the emulation has to be there before anything imports TE
from __future__ import annotations

from harness.device import activate

activate()

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor

from harness.case import AnyLayer, Case, Dropout, Linear, replace, walk
from harness.compare import Comparison, compared_tensors
from harness.fixes import reverted
from harness.mutants import MUTANTS, applied
from harness.program import compile_function
from harness.run import PAIRS, Verdict, pair_name, reset_global_state, run_case
from harness.subjects import composed
from harness.subjects.base import Observation
from strategies import cases

EXECUTORS = ("transformer_engine", "torch")

Tolerance = tuple[float, float]
"""rtol and atol."""

ASSERT_CLOSE: dict[torch.dtype, Tolerance] = {
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
"""The defaults of ``torch.testing.assert_close``, which Thunder's test_transformer_engine_executor.py uses."""
E4M3: Tolerance = (0.125, 0.0675)
E5M2: Tolerance = (0.25, 0.125)
"""``dtype_tols`` in TE's tests/pytorch/utils.py: the relative spacing of the FP8 format."""
FIXED: dict[str, Callable[[Tensor], Tolerance]] = {
    "assert_close defaults (Thunder's tests)": lambda value: ASSERT_CLOSE[value.dtype],
    "rtol 0.125, atol 0.0675 (TE's tests, E4M3)": lambda value: E4M3,
    "rtol 0.25, atol 0.125 (TE's tests, E5M2)": lambda value: E5M2,
}
NUMBERS, ALL_CHECKS = "tefuzz: outputs and gradients alone", "tefuzz: all checks"
RULES = (*FIXED, NUMBERS, ALL_CHECKS)


@dataclass(frozen=True)
class Outcome:
    """Which rules fail a case."""

    failed: frozenset[str]
    clean: bool
    """Whether both sides ran to the end and tefuzz has nothing to say."""


def outcome(verdict: Verdict) -> Outcome:
    """What the rules say of a case that ran under subject and exact reference; the plain reference runs here."""
    if verdict.refusal is not None:
        return Outcome(frozenset(), clean=False)
    failed = {ALL_CHECKS} if verdict.findings else set()
    if verdict.run.subject.failure is not None:
        return Outcome(frozenset(RULES), clean=False)
    if _differ(verdict.run.subject, verdict.run.reference, partial(_within, verdict.run.comparison)):
        failed.add(NUMBERS)
    plain = _plain_reference(verdict)
    for rule, tolerance in FIXED.items():
        if _differ(verdict.run.subject, plain, partial(_close, tolerance)):
            failed.add(rule)
    return Outcome(frozenset(failed), clean=not verdict.findings and plain.failure is None)


def _plain_reference(verdict: Verdict) -> Observation:
    """Eager TE linears, and torch's own functions in between."""
    _, reference_class = PAIRS[pair_name(verdict.case)]
    with _eager_parts():
        reset_global_state()
        return reference_class(verdict.case, activate().device).observe()


@contextmanager
def _eager_parts() -> Iterator[None]:
    def run_eagerly(layer: AnyLayer, x: Tensor, parameters: list[Tensor], *, differentiated: bool) -> Tensor:
        if isinstance(layer, Linear):
            layer = replace(layer, parameters="own")
        result: Tensor = compile_function((layer,), x.shape[-1])(x, *parameters)
        return result

    compiled = composed.run_part
    composed.run_part = run_eagerly
    try:
        yield
    finally:
        composed.run_part = compiled


Rule = Callable[[str, Tensor, Tensor], bool]


def _within(comparison: Comparison, key: str, subject: Tensor, reference: Tensor) -> bool:
    return comparison.difference(key, subject, reference) is None


def _close(tolerance: Callable[[Tensor], Tolerance], _: str, subject: Tensor, reference: Tensor) -> bool:
    if subject.shape != reference.shape or subject.dtype != reference.dtype:
        return False
    rtol, atol = tolerance(reference)
    return torch.allclose(subject, reference, rtol=rtol, atol=atol, equal_nan=True)


def _differ(subject: Observation, reference: Observation, equal: Rule) -> bool:
    ours, theirs = compared_tensors(subject), compared_tensors(reference)
    return ours.keys() != theirs.keys() or not all(equal(key, ours[key], theirs[key]) for key in ours)


def drawn(executor: str, count: int, number: int) -> list[tuple[Case, Outcome]]:
    """``count`` clean cases without dropout, whose masks torch draws otherwise, and what the rules say of them."""
    kept: list[tuple[Case, Outcome]] = []

    @seed(number)
    @settings(
        max_examples=20 * count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(executor))  # type: ignore[arg-type]  # the names of executors are checked by Case
    def keep(case: Case) -> None:
        if len(kept) == count or any(isinstance(layer, Dropout) for _, layer in walk(case.layers)):
            return
        verdict = run_case(case)
        if verdict.findings or (executor != "torch" and verdict.te_linears == 0):
            return
        found = outcome(verdict)
        if found.clean:
            kept.append((case, found))

    keep()
    return kept


def regressions() -> dict[str, tuple[Callable[[], AbstractContextManager[None]], tuple[str, ...]]]:
    """By name what puts a bug in force, and the executors whose cases reach it."""
    found: dict[str, tuple[Callable[[], AbstractContextManager[None]], tuple[str, ...]]] = {
        f"revert of {fix}": (partial(reverted, [fix]), ("transformer_engine",)) for fix in ("caching", "remat")
    }
    for name, mutant in MUTANTS.items():
        executors = tuple(executor for executor in EXECUTORS if executor in mutant.pairs)
        if executors and not mutant.equivalent:
            found[name] = (partial(applied, name), executors)
    return found


def killers(
    context: Callable[[], AbstractContextManager[None]], clean: Sequence[tuple[Case, Outcome]]
) -> frozenset[str]:
    """The rules that see a regression on cases on which they were silent before."""
    seen: set[str] = set()
    for case, before in clean:
        with context():
            seen |= outcome(run_case(case)).failed - before.failed
        if seen == set(RULES):
            break
    return frozenset(seen)


def main(arguments: Sequence[str]) -> None:
    """Draw, compare, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=150, help="cases of each executor (150)")
    parser.add_argument("--mutant-cases", type=int, default=24, help="how many of them mutants get (24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (0)")
    options = parser.parse_args(arguments)
    clean: dict[str, list[tuple[Case, Outcome]]] = {}
    for executor in EXECUTORS:
        clean[executor] = drawn(executor, options.cases, options.seed)
        print(f"{executor}: {len(clean[executor])} cases without a finding", flush=True)
        for rule in RULES:
            print(f"  {sum(rule in before.failed for _, before in clean[executor]):4} alarms  {rule}", flush=True)
    seen: dict[str, frozenset[str]] = {}
    for name, (context, executors) in regressions().items():
        seen[name] = frozenset().union(
            *(killers(context, clean[executor][: options.mutant_cases]) for executor in executors)
        )
        print(f"{name}: seen by {sorted(seen[name]) or 'none'}", flush=True)
    found = [name for name, rules in seen.items() if ALL_CHECKS in rules]
    print(f"\n{len(found)} of {len(seen)} regressions are found on these cases by all checks of tefuzz")
    for rule in RULES:
        missed = [name for name in found if rule not in seen[name]]
        print(f"  missed {len(missed):3}  {rule}: {', '.join(missed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
