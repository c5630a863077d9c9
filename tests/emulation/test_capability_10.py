"""Recipes that need capability 10.0, in a process of their own: TE's Python caches the capability."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_recipe_at_capability_10() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("blackwell_models.py"))],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "all recipes ran" in result.stdout
