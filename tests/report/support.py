"""Judgements of kept cases, made once per process, and reading of pages."""

from __future__ import annotations

import xml.etree.ElementTree
from functools import lru_cache
from pathlib import Path

from harness.corpus import REGRESSIONS, load_regression
from harness.device import activate
from harness.fixes import reverted
from harness.judge import Judge, Judgement
from harness.known_issues import DEFAULT_FILE

KNOWN = DEFAULT_FILE.parent / "known"


@lru_cache(maxsize=32)
def judged(name: str) -> tuple[Judgement, tuple[str, ...]]:
    """The judgement of a case of the corpus, and the reverts under which it was made."""
    path = REGRESSIONS / f"{name}.json" if (REGRESSIONS / f"{name}.json").exists() else KNOWN / f"{name}.json"
    entry = load_regression(path)
    reverts = () if entry.revert is None else (entry.revert,)
    judge = Judge.of(activate())
    with reverted(reverts):
        return judge.judge(entry.case), reverts


def parsed(path: Path) -> xml.etree.ElementTree.Element:
    """A page, which is written to be well-formed XML too."""
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>")
    return xml.etree.ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
