"""The rewriter on small sources, the loader, and the cache of compiled modules."""

from __future__ import annotations

import ast
import marshal
import os
import sys
from pathlib import Path
from types import CodeType

import pytest

from harness.emulation import installation
from harness.emulation.hook import code_cache, rewriter


def rewritten(source: str) -> str:
    return ast.unparse(rewriter.rewrite(source.encode(), "<test>"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x.to('cuda')", "x.to('cpu')"),
        ("f(device='cuda:3')", "f(device='cpu')"),
        ("f(f'cuda:{rank}')", "f('cpu')"),
        ("f('cuda graph')", "f('cuda graph')"),
        ("torch.device('cuda', 1)", "torch.device('cpu')"),
        ("torch.device('cpu', 1)", "torch.device('cpu')"),
        ("torch.cuda.current_device()", "_emulated_cuda.current_device()"),
        ("hasattr(torch.cuda.CUDAGraph, 'x')", "hasattr(_emulated_cuda.CUDAGraph, 'x')"),
        ("my.torch.cuda", "my.torch.cuda"),
        ("f(torch.version.cuda)", "f('13.0')"),
        ("x.is_cuda and y.is_cpu", "x.is_cpu and y.is_cuda"),
        ("x.cuda(0, non_blocking=True)", "x.cpu()"),
        ("devices.DeviceType.CUDA", "devices.DeviceType.CPU"),
        ("Other.CUDA", "Other.CUDA"),
        ("torch.is_autocast_enabled()", "torch.is_autocast_enabled('cpu')"),
        ("torch.is_autocast_enabled('cuda')", "torch.is_autocast_enabled('cpu')"),
        ("torch.get_autocast_dtype('cuda')", "torch.get_autocast_dtype('cpu')"),
        ("torch.autocast('cuda', dtype=d)", "_emulated_autocast('cpu', dtype=d)"),
        ("partial(torch.amp.autocast, device_type='cuda')", "partial(_emulated_autocast, device_type='cpu')"),
        ("import triton", "triton = _emulated_import('triton')"),
        ("import triton.language as tl", "tl = _emulated_import('triton.language')"),
        ("import os, triton", "triton = _emulated_import('triton')\nimport os"),
        ("from triton.language import core as c", "c = _emulated_import('triton.language.core')"),
        ("from .triton import x", "from .triton import x"),
        ("from torch.cuda import _lazy_call", "_lazy_call = _emulated_cuda._lazy_call"),
        ("@jit_fuser\ndef f():\n    pass", "@_emulated_jit_fuser\ndef f():\n    pass"),
        (
            "class A:\n\n    def is_cuda(self):\n        return self.t.is_cuda",
            "class A:\n\n    def is_cpu(self):\n        return self.t.is_cpu",
        ),
        ("def is_cuda(t):\n    return t.is_cuda", "def is_cuda(t):\n    return t.is_cpu"),
    ],
)
def test_rules(source: str, expected: str) -> None:
    assert rewritten(source) == expected


def test_line_numbers_are_kept() -> None:
    source = "import triton\n\n\nx = torch.cuda\nraise ValueError\n"
    lines = [node.lineno for node in rewriter.rewrite(source.encode(), "<test>").body]
    assert lines == [1, 4, 5]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "rewritten_package").mkdir()
    (tmp_path / "rewritten_package" / "__init__.py").write_text("import torch\nDEVICE = torch.cuda.current_device()\n")
    (tmp_path / "rewritten_package" / "inner.py").write_text("DEVICE = 'cuda'\n")
    (tmp_path / "rewritten_package_not.py").write_text("DEVICE = 'cuda'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "rewritten_package"


def test_only_modules_under_the_prefixes_are_rewritten(package: str) -> None:
    import importlib

    import torch

    installation.rewrite_also([package])
    assert torch.device("cpu") == importlib.import_module(package).DEVICE
    assert importlib.import_module(f"{package}.inner").DEVICE == "cpu"
    assert importlib.import_module(f"{package}_not").DEVICE == "cuda"
    for name in list(sys.modules):
        if name.startswith(package):
            del sys.modules[name]


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_cache._directory.cache_clear()
    yield tmp_path / "tefuzz" / "rewritten-modules"  # type: ignore[misc]
    code_cache._directory.cache_clear()


class Compiler:
    """Counts how often it is asked."""

    def __init__(self, source: str = "x = 1") -> None:
        self.source = source
        self.calls = 0

    def __call__(self) -> CodeType:
        self.calls += 1
        return compile(self.source, "<test>", "exec")

    def through_cache(self, filename: str = "f.py", rewriter_id: bytes = b"1") -> CodeType:
        return code_cache.cached_code(self.source.encode(), filename, rewriter_id, self)


def test_cache_is_used_and_keyed_on_everything(cache_directory: Path) -> None:
    compiler = Compiler()
    first = compiler.through_cache()
    assert compiler.through_cache() == first
    assert compiler.calls == 1
    assert cache_directory.stat().st_mode & 0o777 == 0o700
    compiler.through_cache(filename="g.py")
    compiler.through_cache(rewriter_id=b"2")
    Compiler("x = 2").through_cache()
    assert len(list(cache_directory.iterdir())) == 4


def test_a_damaged_entry_is_compiled_again(cache_directory: Path) -> None:
    compiler = Compiler()
    compiler.through_cache()
    (entry,) = cache_directory.iterdir()
    good = entry.read_bytes()
    for damaged in (b"", good[:-1], good[:32] + marshal.dumps(compile("x = 666", "f", "exec"))):
        entry.write_bytes(damaged)
        compiler.through_cache()
        assert entry.read_bytes() == good
    assert compiler.calls == 4


@pytest.mark.parametrize("target", ["entry", "directory"])
def test_what_others_can_write_is_not_trusted(cache_directory: Path, target: str) -> None:
    compiler = Compiler()
    compiler.through_cache()
    (entry,) = cache_directory.iterdir()
    os.chmod(entry if target == "entry" else cache_directory, 0o777)
    code_cache._directory.cache_clear()
    compiler.through_cache()
    assert compiler.calls == 2


def test_an_unwritable_place_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code_cache._directory.cache_clear()
    compiler = Compiler()
    compiler.through_cache()
    compiler.through_cache()
    assert compiler.calls == 2
    code_cache._directory.cache_clear()
