"""``tefuzz reduce``: make a saved case smaller within its bucket."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from harness.case import Case, CaseError, describe
from harness.commands.common import (
    BadInput,
    bucket_id,
    device_option,
    plural,
    revert_option,
    summary_on_interrupt,
    writable_directory,
)
from harness.corpus import load_regression
from harness.device import DeviceChoice, installed_versions
from harness.isolation import Settings
from harness.reduction.reducer import (
    Files,
    NothingToReduceError,
    Reduction,
    State,
    begin,
    load_state,
)
from harness.reduction.workers import Workers
from harness.replay_command import revert_options, run_command

PROGRESS_SECONDS = 15.0
"""Between two lines of progress where no smaller case is found."""


@click.command()
@click.argument("file", metavar="CASE.json", type=click.Path(path_type=Path))
@revert_option
@device_option
@click.option("--bucket", metavar="ID", callback=bucket_id, help="What to keep. Default: the strongest finding.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the smallest case goes.  [default: CASE.reduced.json]",
)
@click.option(
    "-n",
    "--processes",
    type=click.IntRange(min=1),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="cores",
    help="Cases to run at the same time. The result does not depend on it.",
)
def reduce(
    file: Path, reverts: tuple[str, ...], device: DeviceChoice, bucket: str | None, output: Path | None, processes: int
) -> None:
    """Make CASE.json smaller while it stays in its bucket.

    Goes on where Hypothesis stopped: fewer steps and layers, plainer ones, smaller shapes, defaults. The smallest case
    so far is always on disk. After Ctrl-C the same command goes on where it was. A case that takes its process with it,
    or hangs, is reduced like any other.

    \b
    Examples:
      tefuzz reduce .tefuzz/runs/20261201-101500-42/failures/0a1b2c3d4e.json
      tefuzz reduce large.json --revert caching --output small.json
      tefuzz run large.reduced.json --report-dir reports

    \b
    Exit codes:
      0    reduced, or already as small as can be
      2    bad input, or a case that does not show what is to be kept
      3    an error of tefuzz itself
      130  interrupted: run it again to go on
    """
    case = load_regression(file).case
    files = Files(output or file.with_name(f"{file.stem}.reduced.json"))
    if files.output.absolute() == file.absolute():
        raise BadInput(f"{file} is the input: name another file with --output.")
    writable_directory(files.output.absolute().parent).mkdir(parents=True, exist_ok=True)
    state = _earlier_state(files, case, bucket, reverts)
    workers = Workers(processes, Settings(device=device, reverts=reverts))
    progress = _Progress()
    try:
        with summary_on_interrupt(progress.interrupted):
            if state is None:
                click.echo(f"{file}: {describe(case.layers, case.input.features)}")
                state = begin(workers, case, bucket, reverts)
            progress.begin(state)
            progress.reduction = Reduction(workers, state, files, progress.update)
            final = progress.reduction.run()
    except NothingToReduceError as error:
        raise BadInput(f"{file}: {error}".replace("--tefuzz-device", "--device")) from error
    finally:
        workers.close()
    click.echo(_result(final, files, reverts))


def _earlier_state(files: Files, case: Case, bucket: str | None, reverts: Sequence[str]) -> State | None:
    """The state of the same reduction, if it was interrupted."""
    if not files.state.exists():
        return None
    try:
        state = load_state(files.state)
    except CaseError as error:
        click.echo(f"begins anew: {error}")
        return None
    same = state.case == case.id and state.reverts == tuple(reverts) and state.versions == installed_versions()
    if not same or bucket not in (None, state.target.bucket, state.target.digest):
        click.echo(f"begins anew: {files.state} is about another case, bucket, fix or version")
        return None
    click.echo(f"goes on after {plural(state.executions, 'execution')}: {files.state}")
    return state


class _Progress:
    """Lines about a reduction: one for each smaller case, and one now and then."""

    def __init__(self) -> None:
        self.reduction: Reduction | None = None
        self._shown: State | None = None
        self._printed = time.monotonic()

    def begin(self, state: State) -> None:
        """Say what is kept."""
        known = f" (known issue {state.target.issue})" if state.target.issue else ""
        click.echo(f"keeps {state.target.bucket} [{state.target.digest}]{known}")
        self._shown, self._printed = state, time.monotonic()

    def update(self, state: State) -> None:
        """Show a smaller case; of others only that time goes by."""
        assert self._shown is not None
        if state.best != self._shown.best:
            self._print(f"{_size(state)}: {state.history[-1].model}", state)
        elif time.monotonic() - self._printed > (1.0 if sys.stdout.isatty() else PROGRESS_SECONDS):
            self._print(self._estimate(state), state, passing=sys.stdout.isatty())

    def interrupted(self) -> list[str]:
        """What was done when Ctrl-C came."""
        if self.reduction is None:
            return ["nothing"]
        state = self.reduction.state
        return [f"{_size(state)}, after {plural(state.executions, 'execution')}. The same command goes on from there."]

    def _estimate(self, state: State) -> str:
        assert self.reduction is not None
        remaining = self.reduction.remaining
        spent, first = state.seconds - state.history[0].seconds, state.history[0].executions
        seconds = remaining * spent / max(state.executions - first, 1)
        return (
            f"nothing smaller yet; at most {plural(remaining, 'execution')} more in this round, about {seconds:.0f} s"
        )

    def _print(self, text: str, state: State, *, passing: bool = False) -> None:
        """``passing`` text is overwritten by what comes next."""
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        click.echo(f"{clear}  [{state.executions}, {state.seconds:.0f} s] {text}", nl=not passing)
        self._shown, self._printed = state, time.monotonic()


def _size(state: State) -> str:
    now = state.history[-1]
    return f"{plural(now.layers, 'layer')}, {plural(now.steps, 'step')}"


def _result(state: State, files: Files, reverts: Sequence[str]) -> str:
    before, after = state.history[0], state.history[-1]
    return (
        f"{plural(before.layers, 'layer')} and {plural(before.steps, 'step')} became {after.layers} and {after.steps}, "
        f"with {plural(state.executions, 'execution')} in {state.seconds:.0f} s\n"
        f"  model:  {after.model}\n"
        f"  replay: {run_command(files.output, revert_options(reverts))}"
    )
