"""The registry: what is installed has the fixes; a revert takes one away and gives it back, or refuses."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import transformer_engine.pytorch as te
from thunder.core import vjp_utils
from thunder.extend import StatefulExecutor
from thunder.transforms import autodiff
from transformer_engine.common.recipe import Float8CurrentScaling
from transformer_engine.pytorch.ops.fuser import _OperationFuserAutogradFunction

from harness.fixes import FIXES, REVERTS, FixError, missing_fixes, reverted
from harness.fixes.patching import attribute
from harness.fp8_globals import OwnFp8Globals

PATCHED: tuple[Any, ...] = (autodiff, vjp_utils, _OperationFuserAutogradFunction)


def patched_names() -> list[dict[str, int]]:
    """The identity of everything in the places that reverts patch."""
    return [{name: id(value) for name, value in vars(place).items()} for place in PATCHED]


def test_listing_the_fixes_imports_nothing_heavy() -> None:
    script = (
        "import sys, harness.fixes; assert set(harness.fixes.FIXES) == {'caching', 'remat', 'fuser'}; "
        "print([name for name in ('torch', 'thunder', 'transformer_engine') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_all_fixes_are_installed() -> None:
    assert missing_fixes() == []


@pytest.mark.parametrize("revert", REVERTS)
def test_a_revert_takes_the_fix_away_and_gives_it_back(revert: str) -> None:
    fix, before = REVERTS[revert], patched_names()
    with reverted([revert]):
        assert not fix.is_present()
        assert missing_fixes() == [fix]
    assert fix.is_present()
    assert patched_names() == before


@pytest.mark.parametrize("revert", REVERTS)
def test_an_exception_in_the_context_gives_it_back_too(revert: str) -> None:
    before = patched_names()
    with pytest.raises(ZeroDivisionError), reverted([revert]):
        raise ZeroDivisionError
    assert patched_names() == before
    with reverted([revert]):
        assert not REVERTS[revert].is_present()


def test_several_at_once() -> None:
    before = patched_names()
    with reverted(["fuser", "remat", "caching"]):
        assert {fix.name for fix in missing_fixes()} == set(FIXES)
    assert patched_names() == before


def test_none_at_all() -> None:
    with reverted([]):
        assert missing_fixes() == []


@pytest.mark.parametrize("names", [["caching", "caching"], ["remat", "remat-names"]])
def test_one_fix_is_not_undone_twice(names: list[str]) -> None:
    before = patched_names()
    with pytest.raises(FixError, match="already reverted"), reverted(names):
        pytest.fail("not refused")
    assert patched_names() == before


def test_a_refused_inner_revert_leaves_the_outer_one_in_force() -> None:
    with reverted(["remat"]):
        with pytest.raises(FixError, match="already reverted by 'remat'"), reverted(["fuser", "remat"]):
            pytest.fail("not refused")
        assert [fix.name for fix in missing_fixes()] == ["remat"]
    assert missing_fixes() == []


@pytest.mark.parametrize(
    ("name", "message"), [("cashing", "did you mean 'caching'"), ("xyz", "known are caching, remat, remat-names")]
)
def test_an_unknown_name_is_refused_before_anything_is_undone(name: str, message: str) -> None:
    before = patched_names()
    with pytest.raises(FixError, match=message), reverted(["fuser", name]):
        pytest.fail("not refused")
    assert patched_names() == before


@pytest.mark.parametrize(
    ("revert", "function", "line"),
    [
        ("caching", vjp_utils.make_aug_forward_and_backward, "_cache[key] = fw_fn, bw_fn"),
        ("caching", autodiff.grad_transform_on_trace, "joint_forward_backward, _ = _get_gradfn_and_executor(bsym)"),
        (
            "caching",
            StatefulExecutor.get_grad_transform,
            "return disable_caching_split_forward_and_backward(grad_transform)",
        ),
        ("remat", autodiff.grad_transform_on_trace, "joint_trace, _ = InsertRecomputationsProcessor(joint_trace)()"),
        ("remat", autodiff.split_into_forward_and_backward, "saved_for_backward = {}"),
        ("remat-names", autodiff.grad_transform_on_trace, 'new = output.replace_name("bw_" + output.name)'),
        (
            "fuser",
            _OperationFuserAutogradFunction.forward,
            "func_ctx.basic_op_num_params = fuser._basic_op_num_params",
        ),
        ("fuser", _OperationFuserAutogradFunction.backward, "num_params = func_ctx.basic_op_num_params[idx]"),
    ],
)
@pytest.mark.parametrize("change", ["renamed", "twice"])
def test_source_that_moved_is_refused(
    revert: str, function: Callable[..., Any], line: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = inspect.getsource

    def moved(thing: Any) -> str:
        source = real(thing)
        if inspect.unwrap(thing) is not inspect.unwrap(function):
            return source
        return source.replace(line, f"moved({line})" if change == "renamed" else f"{line}\n{line}")

    monkeypatch.setattr(inspect, "getsource", moved)
    before = patched_names()
    with pytest.raises(FixError, match=rf"{function.__qualname__} is not what"), reverted([revert]):
        pytest.fail("not refused")
    assert patched_names() == before
    assert missing_fixes() == []


def test_unreadable_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(thing: Any) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", unreadable)
    with pytest.raises(FixError, match="could not get source code"), reverted(["remat"]):
        pytest.fail("not refused")


def test_a_foreign_patch_over_ours_is_reported() -> None:
    place = ModuleType("place")
    with pytest.raises(FixError, match=r"place\.name was patched by someone else"), attribute(place, "name", 1):
        place.name = 2  # type: ignore[attr-defined]
    assert not hasattr(place, "name")


def test_asking_does_not_depend_on_the_callers_autocast_and_warning_filters() -> None:
    with OwnFp8Globals().active(), te.autocast(recipe=Float8CurrentScaling()), torch.no_grad():
        assert missing_fixes() == []
