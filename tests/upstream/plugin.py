"""Pytest plugin for upstream test files: installs the emulation, rewrites the tests, writes one JSON line per test.

Loaded with ``-p``; ``run_upstream.py`` sets the environment variables.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import emulation
from harness.torch_compat import restore_named_tensor_methods

DIRECTORY, RESULTS, SAMPLE, CAPABILITY = (
    f"TEFUZZ_UPSTREAM_{name}" for name in ("DIRECTORY", "RESULTS", "SAMPLE", "CAPABILITY")
)

OUT_OF_SCOPE: tuple[tuple[str, str], ...] = (
    (r"transformer_engine_torch\.(\w+): the CPU emulation of this project does not cover", r"not emulated: \1"),
    (r"needs a package that the CPU emulation", "kernel written in Triton"),
    (r"torch\.cuda\.(CUDAGraph|graph)", "CUDA graphs"),
    (r"No dot product attention (backend|support)", "attention"),
    (r"nvdlfw[_-]inspect", "debug features (nvdlfw-inspect)"),
    (r"built with NCCL|NCCL.*not|Distributed package", "NCCL"),
    (r"pin(ned)?[_ ]memory|Cannot access accelerator device", "pinned memory"),
    (r"has no attribute '(max_)?memory_(allocated|reserved)|mem_get_info", "GPU memory accounting"),
    (r"ModuleNotFoundError: No module named|onnx", "package that is not installed"),
    (r"No such file or directory|artifact", "files that the repository does not contain"),
    (r"'MappingKeysView' has no len", "Thunder 0.2.6 with this torch, not the emulation"),
)
"""Failures that say nothing about the emulation, by what their last lines contain."""


def _prepare() -> None:
    """Install the emulation when this module is imported: Thunder's conftest imports Thunder, which imports TE."""
    major, minor = os.environ[CAPABILITY].split(".")
    emulation.install((int(major), int(minor)))
    from harness.emulation.installation import rewrite_also

    restore_named_tensor_methods()
    rewrite_also(["thunder.tests"], [Path(os.environ[DIRECTORY])])


_prepare()


def pytest_configure(config: pytest.Config) -> None:
    import torch

    torch.set_num_threads(1)
    config.pluginmanager.register(_Recorder(Path(os.environ[RESULTS])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    size = int(os.environ[SAMPLE])
    if 0 < size < len(items):
        kept = set(random.Random(0).sample(range(len(items)), size))
        items[:] = [item for index, item in enumerate(items) if index in kept]


def reason_out_of_scope(text: str) -> str | None:
    """Why a failure with this traceback does not count, or None."""
    tail = "\n".join(text.splitlines()[-30:])
    for pattern, reason in OUT_OF_SCOPE:
        match = re.search(pattern, tail)
        if match:
            return match.expand(reason) if "\\" in reason else reason
    return None


class _Recorder:
    """Writes each test's outcome as soon as it is known: a crash or a time limit loses nothing."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"collected": len(session.items)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            self._record(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record(report.nodeid, report)

    def _record(self, name: str, report: Any) -> None:
        entry: dict[str, Any] = {"test": name, "outcome": report.outcome}
        if hasattr(report, "wasxfail"):
            entry["outcome"] = "xpassed" if report.outcome == "passed" else "xfailed"
        if report.failed:
            text = report.longreprtext
            entry["reason"] = reason_out_of_scope(text)
            entry["message"] = _last_error(text.splitlines())
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def _last_error(lines: Sequence[str]) -> str:
    errors = [line for line in lines if line.startswith("E  ")]
    return " | ".join(line[1:].strip() for line in errors[:3])[:300] if errors else "".join(lines[-1:])[:300]
