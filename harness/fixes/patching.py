"""Patches that can be taken back: of an attribute, and of a function's source at places that must be as expected."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.fixes.base import FixError

_MISSING = object()


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` in the context; afterwards it is what it was, or absent again.

    ``FixError`` at the end when something else was put there meanwhile: it would be lost without a word.
    """
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        now = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        if now is not value:
            raise FixError(f"{_label(owner)}.{name} was patched by someone else while a fix was reverted")


def require(function: Callable[..., Any], *anchors: str) -> str:
    """The source of ``function``, in which each line of ``anchors`` stands exactly once; ``FixError`` otherwise."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise FixError(f"the source of {_label(function)} cannot be read ({error}): its revert needs it") from error
    lines = [line.strip() for line in source.splitlines()]
    for anchor in anchors:
        if (count := lines.count(anchor)) != 1:
            raise FixError(
                f"{_label(function)} is not what the revert was made for: the line `{anchor}` stands in it {count} "
                "times, not once. Adapt the revert to this release, or install one that tefuzz supports."
            )
    return source


def rewritten(function: Callable[..., Any], lines: dict[str, str], **names: Any) -> Callable[..., Any]:
    """A copy of a module-level function in which whole lines are replaced; new ones may use ``names``.

    The copy shares the module's globals, so patches of other names in the module reach it too.
    """
    source = require(function, *lines)
    replaced = "\n".join(_replace_line(line, lines) for line in source.splitlines())
    # A function around it makes ``names`` closed-over variables. It is built as a tree: indenting the text would
    # change the strings in it.
    tree = ast.parse(f"def _make({', '.join(names)}):\n    return {function.__name__}")
    tree.body[0].body[:0] = ast.parse(replaced).body  # type: ignore[attr-defined]
    namespace: dict[str, Any] = {}
    exec(compile(tree, f"<{_label(function)}, reverted>", "exec", dont_inherit=True), function.__globals__, namespace)
    # ``inspect`` then shows the source of the original, in which other reverts look for their places.
    return functools.update_wrapper(namespace["_make"](**names), function)


def _replace_line(line: str, lines: dict[str, str]) -> str:
    new = lines.get(line.strip())
    return line if new is None else line[: len(line) - len(line.lstrip())] + new


def _label(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", repr(thing)))
    return f"{module}.{name}" if module else str(name)
