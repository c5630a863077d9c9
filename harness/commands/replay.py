"""``tefuzz replay``: do the kept cases still pass, and do the known issues still fail?"""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from harness.commands.common import ExitCode, device_option, plural, revert_option, start, summary_on_interrupt
from harness.corpus import REGRESSIONS, case_files
from harness.device import DeviceChoice
from harness.fixes import reverted
from harness.judge import Judge
from harness.replay import Outcome, Replayed, replay_file, replay_issue

DETAIL_LINES = 10
"""How much of a detail is printed."""

EXIT_CODES = {
    Outcome.CRASHED: ExitCode.OWN_ERROR,
    Outcome.MISSED: ExitCode.OWN_ERROR,
    Outcome.FAILED: ExitCode.FINDINGS,
    Outcome.DRIFTED: ExitCode.DRIFTED,
    Outcome.ERROR: ExitCode.BAD_INPUT,
}
"""The first outcome that occurred decides; those not listed are clean."""


@click.command()
@click.argument("paths", metavar="[DIR|CASE.json]...", nargs=-1, type=click.Path(path_type=Path))
@revert_option
@device_option
def replay(paths: tuple[Path, ...], reverts: tuple[str, ...], device: DeviceChoice) -> None:
    """Replay kept cases, all of corpus/regressions if no path is given.

    Without a path and without --revert it also replays the case of every known issue that claims the installed
    versions: it has to fail, as the issue says.

    \b
    Outcomes:
      FIXED    no finding, and the file names the fix that brought this about
      PASSED   no finding
      KNOWN    all findings are known issues
      FAILED   a finding that no known issue explains
      DRIFTED  a known issue that no longer fails in the versions it claims
      MISSED   the fix that the file names is reverted, and nothing was found
      ERROR    a file is missing or broken; the others are replayed all the same
      CRASHED  tefuzz itself raised

    \b
    Examples:
      tefuzz replay
      tefuzz replay .tefuzz/runs/20260101-120000-42/failures
      tefuzz replay --revert caching    # has to fail, with 1

    \b
    Exit codes, the first that applies:
      3  an error of tefuzz itself: CRASHED or MISSED
      1  FAILED
      4  DRIFTED
      2  ERROR, or bad options
      0  none of these
    """
    files = case_files(paths or (REGRESSIONS,))
    environment = start(device)
    judge = Judge.of(environment)
    work: list[Callable[[], Replayed]] = [partial(replay_file, judge, path, reverts) for path in files]
    if not paths and not reverts:
        work += [partial(replay_issue, judge, issue) for issue in judge.claimed_issues()]
    click.echo(environment.header())
    if reverts:
        click.echo(f"REVERTED: {', '.join(reverts).upper()}: THIS REPLAY HAS TO FAIL")
    done: list[Replayed] = []
    with summary_on_interrupt(lambda: [_summary(done, len(work))]), reverted(reverts):
        for result in _replayed(work):
            done.append(result)
    click.echo(_summary(done, len(work)))
    raise click.exceptions.Exit(_exit_code(result.outcome for result in done))


def _replayed(work: Sequence[Callable[[], Replayed]]) -> Iterator[Replayed]:
    """Do the work, and print each result when it is there."""
    for number, step in enumerate(work, 1):
        started = time.perf_counter()
        result = step()
        seconds = time.perf_counter() - started
        click.echo(f"[{number}/{len(work)}] {result.outcome:<7} {_shown(result.name)} ({seconds:.1f} s)")
        if result.detail:
            click.echo(textwrap.indent(_shortened(result.detail), "    "))
        yield result


def _shortened(detail: str) -> str:
    """A detail without the middle of a long traceback, which ``tefuzz run`` shows."""
    lines = detail.rstrip().splitlines()
    if len(lines) > DETAIL_LINES:
        lines[DETAIL_LINES // 2 : -DETAIL_LINES // 2] = [f"... ({len(lines) - DETAIL_LINES} lines left out)"]
    return "\n".join(lines)


def _shown(name: str) -> str:
    """A path below the working directory without it."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def _summary(done: Sequence[Replayed], planned: int) -> str:
    counts = Counter(result.outcome for result in done)
    counted = f"{len(done)} of {plural(planned, 'case')}" if len(done) < planned else plural(planned, "case")
    return f"{counted}: " + (", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "-")


def _exit_code(outcomes: Iterable[Outcome]) -> ExitCode:
    found = set(outcomes)
    return next((code for outcome, code in EXIT_CODES.items() if outcome in found), ExitCode.CLEAN)
