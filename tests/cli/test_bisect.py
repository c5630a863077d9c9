"""``tefuzz bisect``: the fix that decides is named, and a bug of the installed packages is said to be one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from harness.bisect_fixes import Trial, conclusion
from harness.corpus import REGRESSIONS
from harness.known_issues import DEFAULT_FILE
from harness.run import Verdict
from tests.cli.support import judgement, tefuzz

FOUND, CLEAN = judgement(finds=True).verdict, judgement().verdict
BUCKET = str(FOUND.findings[0].bucket)
KNOWN = DEFAULT_FILE.parent / "known" / "te-ops-parameters-hidden-from-start.json"


def test_the_fix_that_decides_is_named() -> None:
    result = tefuzz("bisect", REGRESSIONS / "fuser.json")
    assert result.exit_code == 1, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
    assert rows[0] == ["as", "installed", "clean"]
    assert {row[1]: row[2] == "clean" for row in rows[1:5]} == {
        "caching": True,
        "remat": True,
        "remat-names": True,
        "fuser": False,
    }
    assert "decided by fuser: NVIDIA/TransformerEngine#1403" in result.stdout
    assert "raised in transformer_engine/pytorch/ops/fuser.py, line" in result.stdout


def test_a_bug_of_the_installed_packages_is_followed_past_other_findings() -> None:
    found = tefuzz("bisect", KNOWN, "--revert", "fuser")
    assert found.exit_code == 1, found.output
    assert "no fix decides: the installed packages show it" in found.stdout
    other = tefuzz("bisect", KNOWN, "--bucket", "0123456789")
    assert other.exit_code == 0
    assert "nothing in bucket 0123456789" in other.stdout


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([(), ("caching",)], "whether a fix is undone or not"),
        ([()], "undoing caching hides it"),
        ([("caching",), ("caching", "remat")], "decided by caching: Lightning-AI/lightning-thunder#82"),
        ([("caching", "remat")], "it takes caching and remat together: Lightning-AI/lightning-thunder#82"),
        ([("caching",), ("remat",), ("caching", "remat")], "decided by caching and remat"),
    ],
)
def test_conclusions(shown: list[tuple[str, ...]], said: str) -> None:
    sets: list[tuple[str, ...]] = [(), ("caching",)] if len(shown[-1]) < 2 else [(), ("caching",), ("remat",)]
    sets += [chosen for chosen in shown if chosen not in sets]
    done = [Trial(chosen, FOUND if chosen in shown else CLEAN) for chosen in sets]
    assert said in conclusion(done, BUCKET)


def test_a_bucket_is_known_by_its_digits() -> None:
    verdict = cast(Verdict, SimpleNamespace(findings=FOUND.findings))
    assert Trial((), verdict).finding(FOUND.findings[0].bucket.digest) is FOUND.findings[0]
    assert Trial((), verdict).finding("0123456789") is None
