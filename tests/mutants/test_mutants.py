"""The registry of mutants: each applies to the installed packages and is taken back, or is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.device import activate
from harness.fixes.patching import function_at
from harness.mutants import (
    MUTANTS,
    Mutant,
    MutantError,
    applied,
    autodiff,
    passes,
    te_fused_modules,
    te_ops,
    te_quantization,
    te_v1,
    te_v2,
    thunderfx,
)
from harness.mutants.base import TORCH

activate()

AREAS = (autodiff, passes, te_v2, te_v1, te_ops, te_fused_modules, te_quantization, thunderfx)
SAMPLE = MUTANTS["grad-rsqrt-sign"]


@pytest.mark.parametrize("name", MUTANTS)
def test_it_changes_one_function_and_gives_it_back(name: str) -> None:
    mutant = MUTANTS[name]
    function = function_at(mutant.target)
    before = function.__code__
    with applied(name):
        assert function_at(mutant.target) is function
        assert function.__code__ is not before
        assert function.__code__ != before, "the change leaves the code as it was"
    assert function.__code__ is before


def test_names_are_unique_and_tell_areas_apart() -> None:
    assert len(MUTANTS) == sum(len(area.MUTANTS) for area in AREAS) >= 30
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)+", name) for name in MUTANTS)
    assert all(area.MUTANTS for area in AREAS)


def test_every_mutant_says_what_it_is() -> None:
    for mutant in MUTANTS.values():
        assert all((mutant.title, mutant.symptom, mutant.pairs, mutant.changes)), mutant.name
        assert len({old for old, _ in mutant.changes}) == len(mutant.changes)


def test_the_digest_follows_what_the_mutant_does() -> None:
    assert replace(SAMPLE, title="other words").digest == SAMPLE.digest
    assert replace(SAMPLE, changes=(("-0.5 *", "-0.4 *"),)).digest != SAMPLE.digest
    assert replace(SAMPLE, target="thunder.core.transforms:_exp_prim_grad").digest != SAMPLE.digest


def test_an_exception_in_the_context_gives_it_back_too() -> None:
    function = function_at(SAMPLE.target)
    before = function.__code__
    with pytest.raises(ZeroDivisionError), applied(SAMPLE):
        raise ZeroDivisionError
    assert function.__code__ is before
    with applied(SAMPLE):
        pass


def test_one_at_a_time() -> None:
    with applied(SAMPLE):
        with (
            pytest.raises(MutantError, match=r"'grad-rsqrt-sign' is in force: .* before applying 'v2-bias-lost'"),
            applied("v2-bias-lost"),
        ):
            pytest.fail("not refused")
        assert function_at(SAMPLE.target).__code__ is not None


def mutant(target: str, *fragments: str) -> Mutant:
    return Mutant(
        name="moved-source",
        title="for the test",
        target=target,
        changes=tuple((fragment, "pass") for fragment in fragments),
        pairs=(TORCH,),
        symptom="none",
    )


@pytest.mark.parametrize(
    ("target", "fragment", "message"),
    [
        (
            "thunder.core.transforms:_rsqrt_prim_grad",
            "-0.25 * g",
            r"_rsqrt_prim_grad is not what .*`-0\.25 \* g`.* 0 times",
        ),
        ("thunder.core.transforms:_rsqrt_prim_grad", "fwd", r"the fragment `fwd` stands in it \d times, not once"),
        ("thunder.core.transforms:_no_such_grad", "fwd", "there is no thunder.core.transforms:_no_such_grad"),
        ("thunder.core.no_such_module:f", "fwd", "there is no thunder.core.no_such_module:f"),
        ("thunder.core.transforms:pids", "fwd", "is not a Python function of that name"),
    ],
)
def test_source_that_moved_is_refused(target: str, fragment: str, message: str) -> None:
    with (
        pytest.raises(MutantError, match=f"(?s)mutant 'moved-source' cannot be applied: .*{message}"),
        applied(mutant(target, fragment)),
    ):
        pytest.fail("not refused")
    with applied(SAMPLE):
        pass


def test_a_change_after_a_refused_one_is_not_kept() -> None:
    target = "thunder.core.transforms:_rsqrt_prim_grad"
    before = function_at(target).__code__
    with pytest.raises(MutantError, match="0 times"), applied(mutant(target, "fwd = prims.rsqrt(a)", "no such text")):
        pytest.fail("not refused")
    assert function_at(target).__code__ is before


@pytest.mark.parametrize(
    ("name", "message"), [("v2-bias-loss", "did you mean 'v2-bias-lost'"), ("xyz", "`tefuzz mutants --list` shows all")]
)
def test_an_unknown_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(MutantError, match=message), applied(name):
        pytest.fail("not refused")


def test_listing_the_mutants_imports_nothing_heavy() -> None:
    script = (
        "import sys, harness.mutants; assert harness.mutants.MUTANTS; "
        "print([name for name in ('torch', 'thunder', 'transformer_engine') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
