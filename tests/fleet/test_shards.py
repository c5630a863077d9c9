"""``--tefuzz-shard I/N``: all parts together are the suite."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.pytest_plugin import _shard

ROOT = Path(__file__).parent.parent.parent


def collected(*options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "fuzz/", "--collect-only", "-q", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^fuzz/\S+::\S+", done.stdout, re.MULTILINE)


def test_the_parts_are_the_suite() -> None:
    whole = collected()
    parts = [collected("--tefuzz-shard", f"{index}/3") for index in (1, 2, 3)]
    assert sorted(test for part in parts for test in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    kinds = Counter(test.split("[")[0] for test in whole)
    for part in parts:
        of_each = {test.split("[")[0] for test in part}
        assert {kind for kind, count in kinds.items() if count >= 3} <= of_each, "each part has tests of every kind"


@pytest.mark.parametrize("given", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_other_parts_are_refused(given: str) -> None:
    with pytest.raises(pytest.UsageError, match="is no part: give I/N"):
        _shard(given)


def test_an_empty_part_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "fuzz/", "--collect-only", "-q", "--tefuzz-shard", "99/99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"--tefuzz-shard 99/99 is empty: there are \d+ tests", done.stderr + done.stdout)


def test_parts() -> None:
    assert (_shard("1/1"), _shard("7/12")) == ((1, 1), (7, 12))
