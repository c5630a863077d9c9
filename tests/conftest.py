"""Settings of the harness's own tests."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings

from harness.device import activate

HERE = Path(__file__).parent
IMPORT_THE_SUBJECTS = {
    HERE: {"test_program.py", "test_build.py", "test_compare.py", "test_rounding.py", "test_run.py"},
    HERE / "checks": {"test_deliberate_errors.py", "test_fp8_update.py"},
}
"""Test modules that import torch, Thunder or TE, directly or through the harness. The others must do without."""

# The same examples in every run: a test that fails at random is of no use to the one who changes something else.
settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Decide between TE's extension and its emulation before a test module imports TE."""
    if module_path.name in IMPORT_THE_SUBJECTS.get(module_path.parent, ()):
        activate()
