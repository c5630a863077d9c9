"""The three bugs are found by the fuzzer's own strategies, and shrink to their known minimum.

``make test`` runs one seed for each revert; ``make quality`` runs 20 and prints examples and seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis.strategies import SearchStrategy

from harness.case import Case, Checkpoint, LayerNorm, Linear, RMSNorm, replace, walk
from harness.device import activate
from harness.fixes import reverted
from harness.search import Search
from strategies import cases, fuser_cases

activate()

SEEDS = range(int(os.environ.get("TEFUZZ_QUALITY_SEEDS", "1")))
RESULTS = Path(os.environ.get("TEFUZZ_QUALITY_RESULTS", os.devnull))
MAX_EXAMPLES = 100


def is_equal_linears(case: Case) -> bool:
    """Two or three equal linears and nothing else; one that is called again is equal too."""
    plain = {replace(layer, parameters="own") for layer in case.layers if isinstance(layer, Linear)}
    return len(plain) == 1 and all(isinstance(layer, Linear) for layer in case.layers) and 2 <= len(case.layers) <= 3


def is_one_small_region(case: Case) -> bool:
    """One checkpointed region of at most two layers, with nothing around it but what needs a gradient."""
    layers = [layer for _, layer in walk(case.layers)]
    return sum(isinstance(layer, Checkpoint) for layer in layers) == 1 and len(layers) <= 4


def is_one_layer(case: Case) -> bool:
    """One linear or norm."""
    return len(case.layers) == 1 and isinstance(case.layers[0], Linear | LayerNorm | RMSNorm)


@dataclass(frozen=True)
class Expected:
    strategy: SearchStrategy[Case]
    checks: frozenset[str]
    minimum: Callable[[Case], bool]


NAMES = frozenset({"name in forward and backward", "name computed twice"})
EXPECTED = {
    "caching": Expected(cases("transformer_engine"), frozenset({"stateful symbol", "quantizer"}), is_equal_linears),
    "remat": Expected(cases("transformer_engine"), NAMES, is_one_small_region),
    "remat-names": Expected(cases("transformer_engine"), NAMES, is_one_small_region),
    "fuser": Expected(fuser_cases(), frozenset({"exception"}), is_one_layer),
}


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("revert", EXPECTED)
def test_found_and_shrunk(revert: str, number: int) -> None:
    expected = EXPECTED[revert]
    search = Search(expected.strategy, MAX_EXAMPLES)
    with reverted([revert]):
        search.run(number)
    seconds = search.seconds
    finding = search.finding
    if finding is not None:
        result = {
            "revert": revert,
            "seed": number,
            "examples_to_find": search.examples_to_find,
            "seconds_to_find": round(search.seconds_to_find, 1),
            "executions": search.executions,
            "seconds": round(seconds, 1),
            "bucket": str(finding.bucket),
            "layers": len(list(walk(finding.case.layers))),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
    assert finding is not None, f"{revert} was not found in {MAX_EXAMPLES} examples"
    assert search.examples_to_find is not None
    assert search.examples_to_find <= MAX_EXAMPLES
    assert finding.bucket.check in expected.checks, str(finding)
    assert expected.minimum(finding.case), str(finding)
    assert len(finding.case.steps) == 1, str(finding)
    if revert == "caching":
        assert "is bound 2 times" in finding.message or "is used by" in finding.message


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("pair", ["transformer_engine", "fuser"])
def test_silent_with_the_fixes(pair: str, number: int) -> None:
    """The same seeds with the fixes in place: only findings that are known issues of the released versions."""
    search = Search(fuser_cases() if pair == "fuser" else cases("transformer_engine"), MAX_EXAMPLES)
    search.run(number)
    assert search.finding is None, str(search.finding)
