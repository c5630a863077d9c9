"""Patches that can be taken back: of an attribute, and of a function's source at places that must be as expected.

Two ways to change a function. ``rewritten`` makes a copy that may use names of ours, to be put in the place of one
attribute. ``edited`` changes the function itself, so that everybody who holds it runs the new code: decorators,
registries, ``from module import function``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
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


@contextmanager
def edited(target: str, changes: Sequence[tuple[str, str]]) -> Iterator[None]:
    """The function at ``target`` (``module:qualified.name``) runs another text until the context ends.

    Each of ``changes`` is a fragment of the function's source, as it stands in the file, and its replacement; it may
    span lines. ``FixError`` when it does not stand there exactly once, or when the function cannot be found.
    """
    function = function_at(target)
    before, code = function.__code__, _edited_code(function, target, changes)
    function.__code__ = code
    try:
        yield
    finally:
        now, function.__code__ = function.__code__, before
        if now is not code:
            raise FixError(f"{target} was patched by someone else while it was edited")


def function_at(target: str) -> FunctionType:
    """The Python function behind ``module:qualified.name``, whatever decorators and descriptors stand before it."""
    module_name, _, qualified_name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in qualified_name.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        raise FixError(f"there is no {target} in the installed packages ({error})") from error
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found  # properties
    function = inspect.unwrap(found)
    if not isinstance(function, FunctionType) or function.__code__.co_qualname != qualified_name:
        raise FixError(f"{target} is not a Python function of that name, but {function!r}")
    return function


def _edited_code(function: FunctionType, target: str, changes: Sequence[tuple[str, str]]) -> CodeType:
    """The code of ``function`` from the changed source of its whole module.

    The module's own loader compiles it, as it did the original: it may rewrite what it reads. The module is not run.
    """
    module = importlib.import_module(target.partition(":")[0])
    loader: Any = module.__spec__.loader if module.__spec__ is not None else None
    path = module.__file__
    if path is None or (source := loader.get_source(module.__name__)) is None:
        raise FixError(f"the source of {module.__name__} cannot be read")
    lines = source.splitlines(keepends=True)
    start, end = _extent(source, function, target)
    text = "".join(lines[start:end])
    for old, _ in changes:
        if (count := text.count(old)) != 1:
            raise FixError(
                f"{target} is not what the change was made for: the fragment `{old}` stands in it {count} times, "
                "not once. Adapt the change to this release, or install one that tefuzz supports."
            )
    for old, new in changes:
        text = text.replace(old, new)
    compiled = loader.source_to_code("".join([*lines[:start], text, *lines[end:]]).encode(), path)
    original = function.__code__
    # What stands before the function keeps its lines, so the first line tells it from others of its name.
    for code in _nested_codes(compiled):
        if (code.co_qualname, code.co_firstlineno) == (original.co_qualname, original.co_firstlineno):
            if code.co_freevars != original.co_freevars:
                raise FixError(f"the change of {target} closes over other variables than the original")
            return code
    raise FixError(f"the changed {target} is not found in its module")


def _extent(source: str, function: FunctionType, target: str) -> tuple[int, int]:
    """The function's first line, decorators included, and the line after its last, counted from 0."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__ and node.end_lineno is not None:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == function.__code__.co_firstlineno:
                return first - 1, node.end_lineno
    raise FixError(f"{target} is not in the source of its module: it was made at run time, or patched before")


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested_codes(constant)


def _replace_line(line: str, lines: dict[str, str]) -> str:
    new = lines.get(line.strip())
    return line if new is None else line[: len(line) - len(line.lstrip())] + new


def _label(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", repr(thing)))
    return f"{module}.{name}" if module else str(name)
