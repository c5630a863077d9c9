"""What the strategies draw: valid cases, nothing thrown away, and the plainest ones when a failure is shrunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.statistics import collector

from harness.case import (
    AnyLayer,
    Autocast,
    Case,
    Checkpoint,
    DelayedScaling,
    Float8CurrentScaling,
    Fuser,
    GatedActivation,
    Jit,
    LayerNorm,
    Linear,
    NoGrad,
    Precision,
    Residual,
    Step,
    canonical_json,
    output_width,
    parse_case,
    walk,
)
from harness.features import features
from strategies import cases, fuser_cases
from strategies.weights import weighted

STRATEGIES = {
    "v2": cases("transformer_engine"),
    "v1": cases("transformer_engine_v1"),
    "torch": cases("torch"),
    "fuser": fuser_cases(),
}
DRAWN = 300


def drawn_cases(strategy: st.SearchStrategy[Case]) -> tuple[list[Case], Counter[str]]:
    """Cases of one Hypothesis run with all health checks on, and how often it drew with which result."""
    drawn: list[Case] = []

    @settings(max_examples=DRAWN, phases=[Phase.generate], suppress_health_check=[])
    @given(case=strategy)
    def draw(case: Case) -> None:
        drawn.append(case)

    results: Counter[str] = Counter()

    def count(statistics: dict[str, Any]) -> None:
        results.update(test_case["status"] for test_case in statistics["generate-phase"]["test-cases"])

    with collector.with_value(count):
        draw()
    return drawn, results


@pytest.fixture(scope="module", params=STRATEGIES)
def drawn(request: pytest.FixtureRequest) -> tuple[str, list[Case], Counter[str]]:
    return request.param, *drawn_cases(STRATEGIES[request.param])


def test_every_drawn_case_is_valid(drawn: tuple[str, list[Case], Counter[str]]) -> None:
    name, found, _ = drawn
    for case in found:
        assert parse_case(canonical_json(case)) == case, "a case built in Python is validated less than one read"
        executor = None if case.jit is None else case.jit.executor
        assert executor == {"v2": "transformer_engine", "v1": "transformer_engine_v1", "torch": "torch"}.get(name)
        assert output_width(case.layers, case.input.features) >= 8


def test_nothing_is_filtered(drawn: tuple[str, list[Case], Counter[str]]) -> None:
    _, found, results = drawn
    assert results["invalid"] == 0
    assert results["valid"] == len(found) >= DRAWN
    # Hypothesis itself tries small sizes first, which many cases do not fit. Large cases must not be given up later.
    assert results["overrun"] < DRAWN / 4


def test_cases_vary(drawn: tuple[str, list[Case], Counter[str]]) -> None:
    """Every choice that a strategy offers turns up in a run of ordinary length."""
    name, found, _ = drawn
    seen = Counter(feature for case in found for feature in features(case))
    assert len({case.id for case in found}) > 0.9 * len(found)
    wanted = {"layer:Linear", "layer:LayerNorm", "layer:RMSNorm", "layer:Activation", "layer:GatedActivation", "frozen"}
    wanted |= {"input:requires_grad", "input:no_grad", "steps:one", "steps:several", "step:second shape"}
    wanted |= {"step:eval", "step:no_grad", "zero_centered_gamma", "rank:2", "rank:3", "rank:4", "dtype:bfloat16"}
    wanted |= {"recipe:DelayedScaling", "distribution:wide_range_rows", "distribution:zeros"}
    if name in ("v2", "fuser"):
        wanted |= {"recipe:Float8CurrentScaling", "dtype:float16"}
    if name in ("torch", "fuser"):
        wanted |= {"recipe:none"}
    if name == "fuser":
        wanted |= {f"hide_parameters:{way}" for way in ("never", "from_start", "between_forward_and_backward")}
    else:
        wanted |= {"layer:Residual", "layer:Checkpoint", "cache:no caching", "entry:function"}
        wanted |= {"layer:NoGrad", "layer:Autocast", "torch_autocast:around the step", "torch_autocast:switched off"}
    wanted |= {"trainable:last_layer", "step:wrong input", "backward:never"}
    if name in ("v1", "v2"):
        wanted |= {"nested region"}
    if name in ("v2", "fuser"):
        wanted |= {"step:another recipe"}
    assert wanted <= set(seen)


def test_equal_layers_in_a_row_are_common(drawn: tuple[str, list[Case], Counter[str]]) -> None:
    """The collision that a cache keyed on shapes needs."""
    _, found, _ = drawn
    assert sum(equal_linears(case) for case in found) > 0.1 * len(found)


def rows(case: Case) -> list[tuple[AnyLayer, ...]]:
    return [case.layers, *(layer.body for _, layer in walk(case.layers) if isinstance(layer, Residual | Checkpoint))]


def equal_linears(case: Case) -> bool:
    return any(isinstance(a, Linear) and a == b for row in rows(case) for a, b in pairwise(row))


def checkpoint_of_two(case: Case) -> bool:
    return any(isinstance(layer, Checkpoint) and len(layer.body) > 1 for _, layer in walk(case.layers))


def has(kind: type[AnyLayer]) -> Callable[[Case], bool]:
    return lambda case: any(isinstance(layer, kind) for _, layer in walk(case.layers))


def anything(case: Case) -> bool:
    return True


LINEAR = Linear(out_features=64)
V2, V1, TORCH = Jit(), Jit(executor="transformer_engine_v1"), Jit(executor="torch")
CURRENT = Precision(recipe=Float8CurrentScaling())

SHRUNK: dict[str, tuple[str, Callable[[Case], bool], Case]] = {
    "anything, v2": ("v2", anything, Case(layers=(LINEAR,))),
    "anything, v1": ("v1", anything, Case(layers=(LINEAR,), jit=V1)),
    "anything, torch": ("torch", anything, Case(layers=(LINEAR,), jit=TORCH)),
    "anything, fuser": ("fuser", anything, Case(layers=(LINEAR,), jit=None, fuser=Fuser())),
    "equal linears": ("v2", equal_linears, Case(layers=(LINEAR, LINEAR))),
    "checkpoint of two": ("v2", checkpoint_of_two, Case(layers=(Checkpoint(body=(LINEAR, LINEAR)),))),
    "residual": ("v1", has(Residual), Case(layers=(Residual(body=(LINEAR,)),), jit=V1)),
    "without grad": ("v2", has(NoGrad), Case(layers=(NoGrad(body=(LINEAR,)),))),
    "norm": ("torch", has(LayerNorm), Case(layers=(LayerNorm(),), jit=TORCH)),
    "gate": ("fuser", has(GatedActivation), Case(layers=(GatedActivation(),), jit=None, fuser=Fuser())),
    "two steps": (
        "v2",
        lambda case: isinstance(case.precision.recipe, DelayedScaling) and len(case.steps) > 1,
        Case(layers=(LINEAR,), steps=(Step(), Step())),
    ),
    "current scaling": (
        "v2",
        lambda case: isinstance(case.precision.recipe, Float8CurrentScaling),
        Case(layers=(LINEAR,), precision=CURRENT),
    ),
    "autocast around a step": (
        "torch",
        lambda case: any(step.torch_autocast for step in case.steps),
        Case(layers=(LINEAR,), steps=(Step(torch_autocast=True),), jit=TORCH),
    ),
    "autocast in a part": ("torch", has(Autocast), Case(layers=(Autocast(body=(LINEAR,)),), jit=TORCH)),
    "another recipe": (
        "v2",
        lambda case: any(step.recipe is not None for step in case.steps[1:]),
        Case(layers=(LINEAR,), steps=(Step(), Step(recipe=Float8CurrentScaling()))),
    ),
    "no caching": (
        "v2",
        lambda case: case.jit is not None and case.jit.cache == "no caching",
        Case(layers=(LINEAR,), jit=Jit(cache="no caching")),
    ),
}


@pytest.mark.parametrize("name", SHRUNK)
def test_shrinks_to_the_plainest_case(name: str) -> None:
    strategy, predicate, expected = SHRUNK[name]
    quick = settings(max_examples=1000, phases=[Phase.generate, Phase.shrink])
    # A fixed stream: from one start in ten Hypothesis ends at another case of the same size.
    assert find(STRATEGIES[strategy], predicate, settings=quick, random=Random(1)) == expected


def test_weights_are_proportions() -> None:
    """``a | a | b`` draws both alike: Hypothesis passes over a strategy that it has seen."""
    chosen: Counter[str] = Counter()

    @settings(max_examples=DRAWN, phases=[Phase.generate])
    @given(weighted((3, st.integers().map(lambda _: "often")), (1, st.integers().map(lambda _: "seldom"))))
    def draw(choice: str) -> None:
        chosen[choice] += 1

    draw()
    assert 2 * chosen["seldom"] < chosen["often"] < 5 * chosen["seldom"]
