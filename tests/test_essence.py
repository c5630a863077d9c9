"""The essence of a finding: what, where, and how to see it again, in less than ten lines."""

from __future__ import annotations

from harness.essence import LINE, essence
from tests.report.support import judged


def lines(name: str) -> list[str]:
    judgement, _ = judged(name)
    return essence(judgement.verdict.findings[0], "tefuzz run x.json")


def test_a_shared_symbol() -> None:
    text = lines("caching")
    assert text[0].startswith("StatefulSymbolShared: get_te_fp8_state_")
    assert text[1].startswith("  where:  layer 0 (Linear); layer 1 (Linear); get_te_fp8_state_")
    assert [line.split(":")[0].strip() for line in text[2:]] == ["bucket", "model", "case", "replay"]


def test_an_exception() -> None:
    text = lines("fuser")
    assert "raised in backward of step 0" in text[0]
    assert text[0].endswith("Expected op 0 to generate 0 param grads, but got 2")
    assert text[1].startswith("  where:  transformer_engine/pytorch/ops/fuser.py, line ")
    assert len(text) < 10
    assert max(map(len, text)) <= LINE
