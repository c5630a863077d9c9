"""The meta path finder and the loader that compile chosen modules through the rewriter."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from harness.emulation.hook import rewriter
from harness.emulation.hook.code_cache import cached_code


class EmulatingFinder(MetaPathFinder):
    """Finds the modules under its prefixes where Python would, and loads them through the rewriter."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()
        self.directories: set[Path] = set()

    def covers(self, fullname: str) -> bool:
        """Whether ``fullname`` is one of the prefixes or lies below one."""
        return any(fullname == prefix or fullname.startswith(prefix + ".") for prefix in self.prefixes)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's ordinary spec with the rewriting loader in it; None for every other module."""
        by_name = self.covers(fullname)
        if not by_name and not self.directories:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        if not by_name and not self._contains(spec.loader.path):
            return None
        spec.loader = RewritingLoader(fullname, spec.loader.path)
        return spec

    def _contains(self, filename: str) -> bool:
        return any(directory in Path(filename).resolve().parents for directory in self.directories)


class RewritingLoader(SourceFileLoader):
    """Compiles the rewritten source and binds the names that the rewritten code uses."""

    def get_code(self, fullname: str) -> CodeType:
        """The compiled rewritten module. Python's own .pyc files are neither read nor written."""
        filename = self.get_filename(fullname)
        source = self.get_data(filename)
        return cached_code(source, filename, _rewriter_id(), lambda: self.source_to_code(source, filename))

    def source_to_code(  # type: ignore[override]  # typeshed also allows trees, which the import system never gives
        self, data: bytes, path: str, *, _optimization: int = -1
    ) -> CodeType:
        """Rewrite and compile ``data``, which need not be what is on disk."""
        tree = rewriter.rewrite(data, path)
        code = compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)
        assert isinstance(code, CodeType)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with the emulation's names bound in it."""
        from harness.emulation import runtime

        module.__dict__.update(runtime.injected_names())
        with _build_mode(module.__name__):
            super().exec_module(module)
        module.__dict__.update(runtime.replacements(module.__name__))


_finder = EmulatingFinder()


def install(prefixes: Sequence[str] = (), directories: Sequence[Path] = ()) -> None:
    """Rewrite modules by dotted prefix or by the directory of their file from now on; repeated calls add up."""
    _finder.prefixes.update(prefixes)
    _finder.directories.update(directory.resolve() for directory in directories)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


@contextmanager
def _build_mode(module_name: str) -> Iterator[None]:
    """While ``transformer_engine.common`` is imported, tell it not to look for CUDA libraries."""
    if module_name != "transformer_engine.common":
        yield
        return
    variables = {"NVTE_PROJECT_BUILDING": "1", "NVTE_RELEASE_BUILD": "0"}
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@cache
def _rewriter_id() -> bytes:
    return hashlib.sha256(Path(rewriter.__file__).read_bytes()).digest()
