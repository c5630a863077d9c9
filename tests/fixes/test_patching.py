"""Source patches: copies in which whole lines are other ones, and functions whose code is another for everybody."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.fixes import FixError
from harness.fixes.patching import attribute, edited, require, rewritten

FACTOR = 2


def scaled(value: int) -> int:
    """Text with "quotes".

    And a second paragraph.
    """
    result = value
    for _ in range(2):
        result = result * FACTOR
    return result


def test_only_the_named_line_changes() -> None:
    plus = rewritten(scaled, {"result = result * FACTOR": "result = result + FACTOR"})
    assert (plus(5), scaled(5)) == (9, 20)
    assert plus.__doc__ == scaled.__doc__


def test_new_lines_may_use_names_that_the_module_lacks() -> None:
    applied = rewritten(scaled, {"result = value": "result = change(value)"}, change=lambda value: -value)
    assert applied(1) == -4


def test_globals_are_those_of_the_module() -> None:
    copy = rewritten(scaled, {})
    with attribute(__import__("sys").modules[__name__], "FACTOR", 10):
        assert copy(1) == 100
    assert copy(1) == 4


@pytest.mark.parametrize(("line", "count"), [("result = nothing", 0), ("return result", 1)])
def test_each_anchor_stands_once(line: str, count: int) -> None:
    if count == 1:
        assert line in require(scaled, line)
        return
    with pytest.raises(FixError, match=r"test_patching\.scaled is not what .* stands in it 0 times"):
        require(scaled, line)


def test_part_of_a_line_is_no_anchor() -> None:
    with pytest.raises(FixError, match="0 times"):
        require(scaled, "result * FACTOR")


SAMPLE = """
import functools

REGISTRY = {}


def registered(function):
    REGISTRY[function.__name__] = function

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def plain(x):
    return x + 1


@registered
def decorated(x):
    return x + 1


def outer(x):
    def inner(y):
        return y + x

    class Nested:
        value = inner(1)

    return inner(1), Nested.value


class Thing:
    start = 1

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def method(cls, x):
        return x + cls.start

    @property
    def prop(self):
        return self.start + 1

    @functools.cached_property
    def cached(self):
        return self.start + 1

    def twice(self, x):
        return x + 1, x + 1


class Child(Thing):
    @classmethod
    def method(cls, x):
        return super().method(x) + 1
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module on disk, as an installed package is."""
    (tmp_path / "patching_sample.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("patching_sample")
    del sys.modules["patching_sample"]


@pytest.mark.parametrize(
    ("name", "change", "call", "before", "after"),
    [
        ("plain", ("x + 1", "x - 1"), lambda module: module.plain(5), 6, 4),
        ("decorated", ("x + 1", "x - 1"), lambda module: module.decorated(5), 6, 4),
        ("decorated", ("x + 1", "x - 1"), lambda module: module.REGISTRY["decorated"](5), 6, 4),
        ("outer", ("return y + x", "return y - x"), lambda module: module.outer(5), (6, 6), (-4, -4)),
        ("Thing.static", ("x + 1", "x - 1"), lambda module: module.Thing.static(5), 6, 4),
        ("Thing.method", ("x + cls.start", "x - cls.start"), lambda module: module.Thing.method(5), 6, 4),
        ("Child.method", (".method(x) + 1", ".method(x) - 1"), lambda module: module.Child.method(5), 7, 5),
        ("Thing.prop", ("self.start + 1", "self.start - 1"), lambda module: module.Thing().prop, 2, 0),
        ("Thing.cached", ("self.start + 1", "self.start - 1"), lambda module: module.Thing().cached, 2, 0),
        ("plain", ("    return x + 1", "    x = 2 * x\n    return x + 1"), lambda module: module.plain(5), 6, 11),
    ],
)
def test_an_edited_function_is_changed_for_everybody(
    sample: Any, name: str, change: tuple[str, str], call: Callable[[Any], Any], before: Any, after: Any
) -> None:
    held = sample.plain
    assert call(sample) == before
    with edited(f"patching_sample:{name}", [change]):
        assert call(sample) == after
        assert sample.plain is held
    assert call(sample) == before


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("plain", ("x + 2", ""), r"plain is not what .* `x \+ 2` stands in it 0 times"),
        ("Thing.twice", ("x + 1", "x"), "stands in it 2 times, not once"),
        ("missing", ("x", "y"), "there is no patching_sample:missing"),
        ("REGISTRY", ("x", "y"), "is not a Python function of that name"),
        ("Child.method", ("super().method(x)", "x"), "closes over other variables"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(sample: Any, name: str, change: tuple[str, str], message: str) -> None:
    with pytest.raises(FixError, match=message), edited(f"patching_sample:{name}", [change]):
        pytest.fail("not refused")
    assert (sample.plain(5), sample.Child.method(5)) == (6, 7)


def test_a_foreign_patch_over_an_edit_is_reported(sample: Any) -> None:
    before = sample.plain.__code__
    with (
        pytest.raises(FixError, match="plain was patched by someone else"),
        edited("patching_sample:plain", [("x + 1", "x - 1")]),
    ):
        sample.plain.__code__ = (lambda x: x).__code__
    assert sample.plain.__code__ is before
