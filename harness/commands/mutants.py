"""``tefuzz mutants``: would the fuzzer find small regressions of the installed Thunder and TE?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from harness.commands.common import ExitCode, plural, summary_on_interrupt, writable_directory
from harness.mutants import MUTANTS, Mutant, mutant_named
from harness.mutants.campaign import Limits, run_campaign
from harness.mutants.results import Result, append_result, fails, is_finished, read_results, table

RESULTS = Path(".tefuzz") / "mutants.jsonl"


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--max-examples",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Cases to draw for each mutant until one kills it.",
)
@click.option(
    "--time-box",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Time for each mutant, to find and to shrink; then the smallest case so far counts.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes at a time.  [default: one for each core]")
@click.option(
    "--results",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=RESULTS,
    show_default=True,
    help="JSON lines; a mutant that has its result in it is not searched for again.",
)
@click.option("--again", is_flag=True, help="Search for mutants that have their result, too.")
@click.option("--list", "only_list", is_flag=True, help="List the mutants and do nothing.")
def mutants(
    names: tuple[str, ...],
    max_examples: int,
    time_box: float,
    workers: int | None,
    results: Path,
    again: bool,
    only_list: bool,
) -> None:
    """Put small regressions into Thunder and Transformer Engine, in memory, and fuzz until each is found.

    Each mutant NAME (all of them without any) is searched for in a process of its own. The table says which check
    killed it, after how many cases and seconds, and what the case shrinks to. A mutant that no case kills
    is equivalent, or shows what the strategies or the checks lack.

    \b
    Examples:
      tefuzz mutants --list
      tefuzz mutants v2-bias-lost cse-forgets-backward
      tefuzz mutants --time-box 120 --workers 4    # all; Ctrl-C and the same command go on later
      tefuzz mutants v2-bias-lost --again --max-examples 1000

    \b
    Exit codes:
      0    all are killed, or marked as equivalent
      1    some survived, or could not be applied
      2    bad input: nothing was run
      3    an error of tefuzz itself
      130  interrupted; what was done is kept
    """
    chosen = [mutant_named(name) for name in dict.fromkeys(names)] or list(MUTANTS.values())
    if only_list:
        for line in _listing(chosen):
            click.echo(line)
        return
    writable_directory(results.parent)
    known = read_results(results)
    todo = [mutant for mutant in chosen if again or not is_finished(mutant, known.get(mutant.name), max_examples)]
    if len(todo) < len(chosen):
        click.echo(f"{plural(len(chosen) - len(todo), 'mutant')} done before (results in {results})")
    with summary_on_interrupt(lambda: table(chosen, read_results(results))):
        _search(todo, Limits(max_examples, time_box), workers or _cores(), results)
    done = read_results(results)
    for line in table(chosen, done):
        click.echo(line)
    if any(fails(mutant, done[mutant.name]) for mutant in chosen):
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _search(todo: Sequence[Mutant], limits: Limits, workers: int, results: Path) -> None:
    """Search for ``todo`` and keep each result as soon as it is there."""
    from harness.commands.mutant_search import command

    started = time.monotonic()
    count = 0

    def keep(result: Result) -> None:
        nonlocal count
        count += 1
        append_result(results, result)
        left = (time.monotonic() - started) / count * (len(todo) - count)
        click.echo(f"[{count}/{len(todo)}] {_sentence(result)}; about {left / 60:.0f} min left")

    run_campaign(todo, limits, workers, command, keep)


def _sentence(result: Result) -> str:
    after = f"after {plural(result.examples, 'example')}, {result.seconds:.0f} s"
    match result.outcome:
        case "killed":
            return f"{result.mutant}: killed by {result.by} {after}"
        case "survived":
            return f"{result.mutant}: SURVIVED {after}"
        case _:
            return f"{result.mutant}: ERROR: {result.by}"


def _listing(chosen: Iterable[Mutant]) -> Iterator[str]:
    for mutant in chosen:
        yield f"{mutant.name}: {mutant.title}"
        yield f"    in {mutant.target}; cases of {', '.join(mutant.pairs)}; expected: {mutant.symptom}"
        if mutant.equivalent:
            yield f"    equivalent: {mutant.equivalent}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
