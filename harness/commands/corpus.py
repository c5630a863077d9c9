"""``tefuzz corpus``: look at the working corpus, make it small, and join those of several machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from harness.case import CaseError
from harness.commands.common import BadInput, ExitCode, plural, writable_directory
from harness.working_corpus import default_directory, merge, minimise, overview, read_corpus


@click.group(invoke_without_command=True)
@click.pass_context
def corpus(context: click.Context) -> None:
    """Look after the working corpus: what fuzz runs found and reached, a file per case, outside git.

    `pytest fuzz/` adds to it: findings in new buckets, and cases in which two features meet for the first time. It is
    in .tefuzz/corpus, or where TEFUZZ_CORPUS or `pytest fuzz/ --tefuzz-corpus DIR` says. Without a subcommand: show.

    \b
    Examples:
      tefuzz corpus
      tefuzz corpus show DIR
      tefuzz corpus minimise
      tefuzz corpus merge .tefuzz/corpus from-runner-1 from-runner-2
      tefuzz replay .tefuzz/corpus    # run what is in it

    Exit codes: 0 done; 2 bad input, or files that cannot be read (they are named and left alone); 3 an error of
    tefuzz itself.
    """
    if context.invoked_subcommand is None:
        context.invoke(show, directory=None)


@corpus.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
def show(directory: Path | None) -> None:
    """Say how many cases DIR holds, in which buckets findings are, and how many cases could go.

    \b
    Examples:
      tefuzz corpus show
      tefuzz corpus show from-runner-1

    Exit codes: 0 shown; 2 there is no such directory, or files in it cannot be read.
    """
    chosen = _existing(directory)
    for line in overview(chosen):
        click.echo(line)
    _name(read_corpus(chosen)[1])


@corpus.command(name="minimise")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
def minimise_command(directory: Path | None) -> None:
    """Keep the smallest case of each bucket, and the smallest cases that show every pair of features; remove the rest.

    Of several cases with the same features only the smallest stays; no bucket and no pair of features is lost.

    \b
    Examples:
      tefuzz corpus minimise
      tefuzz corpus minimise merged

    Exit codes: 0 done; 2 there is no such directory, or files in it cannot be read (they are left alone).
    """
    chosen = writable_directory(_existing(directory))
    before, after, problems = minimise(chosen)
    click.echo(f"{chosen}: {plural(after, 'case')} of {before} kept")
    _name(problems)


@corpus.command(name="merge")
@click.argument("into", metavar="INTO", type=click.Path(path_type=Path))
@click.argument("sources", metavar="FROM...", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge_command(into: Path, sources: tuple[Path, ...]) -> None:
    """Add the cases of FROM to INTO, which need not be there. Equal cases are one; FROM stays as it is.

    \b
    Examples:
      tefuzz corpus merge .tefuzz/corpus from-runner-1 from-runner-2
      tefuzz corpus merge joined corpus/regressions from-runner-1 && tefuzz corpus minimise joined

    Exit codes: 0 done; 2 a FROM is not there, or files cannot be read (the others are merged all the same).
    """
    for source in sources:
        _existing(source)
    added, problems = merge(writable_directory(into), sources)
    click.echo(f"{into}: {plural(added, 'case')} added")
    _name(problems)


def _existing(directory: Path | None) -> Path:
    chosen = default_directory() if directory is None else directory
    if not chosen.is_dir():
        raise BadInput(f"{chosen}: there is no such directory. `pytest fuzz/` makes a corpus; or name another one.")
    return chosen


def _name(problems: Sequence[CaseError]) -> None:
    """Name the files that cannot be read, and end with the exit code for it."""
    for problem in problems:
        click.echo(f"ERROR   {problem}", err=True)
    if problems:
        click.echo(f"{plural(len(problems), 'file')} cannot be read", err=True)
        raise click.exceptions.Exit(ExitCode.BAD_INPUT)
