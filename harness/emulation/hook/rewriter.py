"""Rewrites a module's syntax tree so that its CUDA defaults resolve to the CPU.

Line numbers stay as they are, so tracebacks and coverage still point into the real source.
"""

from __future__ import annotations

import ast
import re
from typing import TypeVar

CUDA_FACADE = "_emulated_cuda"
OPTIONAL_IMPORT = "_emulated_import"
FUSER = "_emulated_jit_fuser"
AUTOCAST = "_emulated_autocast"
INJECTED_NAMES = (CUDA_FACADE, OPTIONAL_IMPORT, FUSER, AUTOCAST)
"""Names that the loader binds in a rewritten module before it runs."""

REPORTED_CUDA_VERSION = "13.0"
"""``torch.version.cuda`` as rewritten modules see it: block scaling asks for 12.9 or later."""

STUBBED_PACKAGES = frozenset({"triton", "einops", "onnx", "onnxscript", "onnxruntime"})
"""Packages that TE imports at module level and that none of the emulated code needs."""

_FUSERS = frozenset({"jit_fuser", "dropout_fuser"})
"""Decorators by which TE hands small pointwise functions to torch.compile."""

_CUDA_DEVICE = re.compile(r"cuda(:\d+)?$")
_SWAPPED = {"is_cuda": "is_cpu", "is_cpu": "is_cuda"}

_Node = TypeVar("_Node", bound=ast.AST)


def rewrite(source: bytes, filename: str) -> ast.Module:
    """Parse ``source`` and return its tree with the rules of this module applied.

    Raises:
        SyntaxError: the source does not parse.
    """
    tree = ast.parse(source, filename=filename)
    rewritten = _Rewriter().visit(tree)
    assert isinstance(rewritten, ast.Module)
    return ast.fix_missing_locations(rewritten)


def _is_torch_attribute(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    )


def _at(new: _Node, old: ast.AST) -> _Node:
    return ast.copy_location(new, old)


class _Rewriter(ast.NodeTransformer):
    """One pass; children first, so that a rule sees already rewritten arguments."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _CUDA_DEVICE.match(node.value):
            return _at(ast.Constant("cpu"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            return _at(ast.Constant("cpu"), node)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if _is_torch_attribute(node, "cuda"):
            return _at(ast.Name(CUDA_FACADE, node.ctx), node)
        if _is_torch_attribute(node, "autocast") or _is_amp_autocast(node):
            return _at(ast.Name(AUTOCAST, node.ctx), node)
        if node.attr == "cuda" and _is_torch_attribute(node.value, "version"):
            return _at(ast.Constant(REPORTED_CUDA_VERSION), node)
        self.generic_visit(node)
        if node.attr in _SWAPPED:
            node.attr = _SWAPPED[node.attr]
        elif node.attr == "CUDA" and _names_device_type(node.value):
            node.attr = "CPU"
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "cuda"
            and not _is_torch_attribute(function, "cuda")
        ):
            function.attr = "cpu"  # tensor.cuda() and module.cuda(), with or without a device
            node.args, node.keywords = [], []
        self.generic_visit(node)
        if _is_torch_attribute(function, "device"):
            _drop_device_index(node)
        elif _is_torch_attribute(function, "is_autocast_enabled") and not node.args:
            node.args = [_at(ast.Constant("cpu"), node)]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for statement in node.body:
            # A class that answers is_cuda for the tensors it holds must answer the question it is now asked.
            if isinstance(statement, ast.FunctionDef) and statement.name in _SWAPPED:
                statement.name = _SWAPPED[statement.name]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for index, decorator in enumerate(node.decorator_list):
            if isinstance(decorator, ast.Name) and decorator.id in _FUSERS:
                node.decorator_list[index] = _at(ast.Name(FUSER, ast.Load()), decorator)
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | list[ast.stmt]:
        return _without_stubbed_packages(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if node.level == 0 and node.module == "torch.cuda":
            return [_bind(alias.asname or alias.name, _facade_attribute(alias.name), node) for alias in node.names]
        root = (node.module or "").partition(".")[0]
        if node.level == 0 and root in STUBBED_PACKAGES:
            return [
                _bind(alias.asname or alias.name, _stub(f"{node.module}.{alias.name}"), node) for alias in node.names
            ]
        return node


def _names_device_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "DeviceType"
    return isinstance(node, ast.Name) and node.id == "DeviceType"


def _is_amp_autocast(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "autocast" and _is_torch_attribute(node.value, "amp")


def _drop_device_index(node: ast.Call) -> None:
    """``torch.device("cuda", i)``: there is one CPU, and ``torch.device("cpu", 1)`` would name another device."""
    if len(node.args) == 2 and isinstance(node.args[0], ast.Constant) and node.args[0].value == "cpu":
        node.args.pop()


def _without_stubbed_packages(node: ast.Import) -> ast.AST | list[ast.stmt]:
    statements: list[ast.stmt] = []
    kept = []
    for alias in node.names:
        root = alias.name.partition(".")[0]
        if root not in STUBBED_PACKAGES:
            kept.append(alias)
        elif alias.asname:
            statements.append(_bind(alias.asname, _stub(alias.name), node))
        else:
            statements.append(_bind(root, _stub(root), node))
    if not statements:
        return node
    if kept:
        statements.append(_at(ast.Import(kept), node))
    return statements


def _bind(name: str, value: ast.expr, origin: ast.AST) -> ast.stmt:
    return _at(ast.Assign([ast.Name(name, ast.Store())], value), origin)


def _facade_attribute(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(CUDA_FACADE, ast.Load()), name, ast.Load())


def _stub(name: str) -> ast.expr:
    return ast.Call(ast.Name(OPTIONAL_IMPORT, ast.Load()), [ast.Constant(name)], [])
