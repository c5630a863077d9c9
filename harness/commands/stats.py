"""``tefuzz stats``: what the strategies draw, without running it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import click

from harness.case import Case
from harness.commands.common import summary_on_interrupt
from harness.features import features

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

IMPORTANT = (
    "equal layers in a row",
    "layer:Checkpoint",
    "layer:Residual",
    "frozen",
    "input:requires_grad",
    "step:no_grad",
    "step:eval",
    "step:second shape",
    "recipe_object:new_each_step",
    "cache:no caching",
)
"""The ten features whose combinations real bugs needed. Any two of them can meet in one case."""

RARE_FEATURE = 1 / 200
RARE_PAIR = 1 / 100


@click.command()
@click.option(
    "-n", "count", type=click.IntRange(min=1), default=2000, show_default=True, help="How many cases to draw."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides what is drawn.")
def stats(count: int, seed: int) -> None:
    """Draw cases without running them and count their features.

    Prints how often each feature occurs, and which pairs of the ten most important features are rarest. Features in
    fewer than 1 of 200 cases and pairs in fewer than 1 of 100 are marked RARE: widen the strategies there.

    \b
    Examples:
      tefuzz stats
      tefuzz stats -n 200 --seed 7

    Exit codes: 0 drawn; 2 bad options; 3 an error of tefuzz itself.
    """
    drawn: list[frozenset[str]] = []
    strategies = _strategies(count)
    # CPU time: other processes of the machine must not change the rate.
    started = time.process_time()
    with summary_on_interrupt(lambda: _report(drawn)):
        for strategy, share in strategies:
            _draw(strategy, share, seed, drawn)
    seconds = time.process_time() - started
    click.echo(f"{len(drawn)} cases drawn with seed {seed}, {len(drawn) / seconds:.0f} a second of one core")
    for line in _report(drawn):
        click.echo(line)


def _strategies(count: int) -> list[tuple[SearchStrategy[Case], int]]:
    """The strategies of the fuzz suite with their shares of ``count``, which follow its numbers of shards."""
    from strategies import cases, fused_module_cases, fuser_cases

    weighted = (
        (cases("transformer_engine"), 6),
        (cases("transformer_engine_v1"), 4),
        (cases("torch"), 3),
        (fuser_cases(), 3),
        (fused_module_cases(), 2),
    )
    total = sum(weight for _, weight in weighted)
    shares = [count * weight // total for _, weight in weighted]
    shares[0] += count - sum(shares)
    return [(strategy, share) for (strategy, _), share in zip(weighted, shares, strict=True) if share]


def _draw(strategy: SearchStrategy[Case], count: int, seed: int, drawn: list[frozenset[str]]) -> None:
    """Add the features of ``count`` cases to ``drawn``, from the stream that a fuzz run would see."""
    import hypothesis

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def draw(case: Case) -> None:
        drawn.append(features(case))

    draw()


def _report(drawn: Sequence[frozenset[str]]) -> Iterator[str]:
    singles = Counter(feature for case in drawn for feature in case)
    # One that never occurs has to be seen as well.
    singles.update(dict.fromkeys(IMPORTANT, 0))
    pairs = Counter(dict.fromkeys(combinations(IMPORTANT, 2), 0))
    for case in drawn:
        pairs.update(combinations([feature for feature in IMPORTANT if feature in case], 2))
    yield "\nfeatures, the most frequent first:"
    for feature, occurs in singles.most_common():
        yield _line(feature, occurs, len(drawn), RARE_FEATURE)
    yield "\nthe rarest pairs of the ten most important features:"
    for pair, occurs in sorted(pairs.items(), key=lambda item: item[1])[:10]:
        yield _line(" + ".join(pair), occurs, len(drawn), RARE_PAIR)


def _line(name: str, occurs: int, total: int, rare: float) -> str:
    share = occurs / total if total else 0.0
    return f"  {occurs:6} {share:7.2%}  {name}" + ("  RARE" if share < rare else "")
