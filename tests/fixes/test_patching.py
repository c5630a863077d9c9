"""Source patches: of whole lines, with the module's globals, in place for what was imported before."""

from __future__ import annotations

import pytest

from harness.fixes import FixError
from harness.fixes.patching import attribute, require, rewritten

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
