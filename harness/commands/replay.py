"""``tefuzz replay``: do the kept cases still pass, and do the known issues still fail?"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from harness.commands.common import (
    device_option,
    isolated_judge,
    plural,
    revert_option,
    start,
    summary_on_interrupt,
    writable_directory,
)
from harness.corpus import case_files
from harness.device import DeviceChoice
from harness.exit_codes import ExitCode
from harness.fixes import reverted
from harness.isolation import IsolatedRunner, Settings
from harness.judge import IsolatedJudge, Judge
from harness.replay import (
    DEFAULT_RECORDS,
    Kept,
    Outcome,
    Records,
    Replayed,
    conditions,
    exit_code,
    plan,
)
from harness.replay import (
    replay as replay_kept,
)
from harness.replay_processes import replay_in_processes

DETAIL_LINES = 10
"""How much of a detail is printed."""


@click.command()
@click.argument("paths", metavar="[DIR|CASE.json]...", nargs=-1, type=click.Path(path_type=Path))
@revert_option
@device_option
@click.option(
    "-n",
    "processes",
    metavar="N",
    default="auto",
    show_default=True,
    callback=lambda _context, _parameter, value: _processes(value),
    help="Cases at a time, each in a process of its own; auto: one for each core; 0: in this process, one by one.",
)
@click.option("--resume", is_flag=True, help="Go on where the last replay was interrupted.")
@click.option(
    "--records",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="Where the outcomes are kept for --resume, as JSON lines.",
)
def replay(
    paths: tuple[Path, ...], reverts: tuple[str, ...], device: DeviceChoice, processes: int, resume: bool, records: Path
) -> None:
    """Replay kept cases, all of corpus/regressions and corpus/habits if no path is given.

    The case of a known issue that claims the installed versions has to fail, as the issue says. Without a path and
    without --revert those of all known issues are replayed.

    \b
    Outcomes:
      FIXED    no finding, and the file names the fix that brought this about
      PASSED   no finding
      KNOWN    all findings are known issues
      FAILED   a finding that no known issue explains, a crash or a hang
      DRIFTED  a known issue that no longer fails in the versions it claims
      MISSED   the fix that the file names is reverted, and nothing was found
      ERROR    a file is missing or broken; the others are replayed all the same
      CRASHED  tefuzz itself raised

    \b
    Examples:
      tefuzz replay
      tefuzz replay -n 4 .tefuzz/corpus corpus
      tefuzz replay -n 4 .tefuzz/corpus corpus --resume    # after Ctrl-C
      tefuzz replay .tefuzz/runs/20260101-120000-42/failures
      tefuzz replay --revert caching    # has to fail, with 1

    With --resume an outcome of before counts as long as the file, the installed versions, the device, --revert and
    the known issues are the same.

    \b
    Exit codes, the first that applies:
      3    an error of tefuzz itself: CRASHED or MISSED
      1    FAILED
      4    DRIFTED
      2    ERROR, or bad options
      0    none of these
      130  interrupted; what was done is kept
    """
    case_files(paths)  # a place without cases is refused before any time is spent
    runners = [IsolatedRunner(Settings(device=device, reverts=reverts)) for _ in range(processes)]
    with ExitStack() as stack:
        for runner in runners:
            stack.callback(runner.close)
        code = _replay(paths, reverts, device, runners, resume, records)
    raise click.exceptions.Exit(code)


def _replay(
    paths: Sequence[Path],
    reverts: Sequence[str],
    device: DeviceChoice,
    runners: Sequence[IsolatedRunner],
    resume: bool,
    records: Path,
) -> ExitCode:
    """Replay what is left to do, say what came of it, and return the exit code."""
    judge: Judge | IsolatedJudge
    if runners:
        judge, environment = isolated_judge(runners[0])
    else:
        environment = start(device)
        judge = Judge.of(environment)
    work = plan(paths, judge.issues, judge.versions, reverts)
    writable_directory(records.parent)
    if not resume:
        records.unlink(missing_ok=True)
    kept_records = Records(records, conditions(environment, reverts), resume=resume)
    click.echo(environment.header())
    if reverts:
        click.echo(f"REVERTED: {', '.join(reverts).upper()}: THIS REPLAY HAS TO FAIL")
    done = [result for kept in work if (result := kept_records.outcome_of(kept)) is not None]
    todo = [kept for kept in work if kept_records.outcome_of(kept) is None]
    if done:
        click.echo(f"{plural(len(done), 'case')} done before (outcomes in {records}):")
        for result in done:
            click.echo(_line(result))
    with summary_on_interrupt(lambda: [_summary(done, len(work)), "To go on: the same command with --resume"]):
        for kept, result in _replayed(todo, judge, reverts, runners):
            kept_records.append(kept, result)
            done.append(result)
            click.echo(f"[{len(done)}/{len(work)}] {_line(result)}")
    click.echo(_summary(done, len(work)))
    return exit_code(result.outcome for result in done)


def _processes(value: str) -> int:
    if value == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is no number: give one, or 'auto'.")
    return int(value)


def _replayed(
    todo: Sequence[Kept], judge: Judge | IsolatedJudge, reverts: Sequence[str], runners: Sequence[IsolatedRunner]
) -> Iterator[tuple[Kept, Replayed]]:
    if runners:
        yield from replay_in_processes(todo, runners)
        return
    with reverted(reverts):
        for kept in todo:
            yield kept, replay_kept(judge, kept, reverts)


def _line(result: Replayed) -> str:
    line = f"{result.outcome:<7} {_shown(result.name)} ({result.seconds:.1f} s)"
    return f"{line}\n{textwrap.indent(_shortened(result.detail), '    ')}" if result.detail else line


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
