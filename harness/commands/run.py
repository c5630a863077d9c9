"""``tefuzz run``: run cases from files and say what was found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import click

from harness.case import Case, CaseError, describe
from harness.commands.common import (
    BadInput,
    ExitCode,
    bucket_id,
    device_option,
    isolated_judge,
    limit_options,
    plural,
    revert_option,
    settings_of,
    start,
    summary_on_interrupt,
    writable_directory,
)
from harness.corpus import load_regression
from harness.device import DeviceChoice, Environment
from harness.fixes import reverted
from harness.isolation import IsolatedRunner, ProcessFinding
from harness.judge import AnyJudgement, IsolatedJudge, Judge, Judgement, ReportedJudgement


@click.command()
@click.argument("files", metavar="CASE.json...", nargs=-1, required=True, type=click.Path(path_type=Path))
@revert_option
@device_option
@click.option(
    "--expect-bucket",
    metavar="ID",
    callback=bucket_id,
    help="Let this bucket alone decide the exit code, for outside reducers: 1 found, 0 not found.",
)
@limit_options
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the cases in this process, for debuggers: no limits, and a crash ends the command.",
)
@click.option(
    "--report-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a report for each bucket into a folder of this directory.",
)
def run(
    files: tuple[Path, ...],
    reverts: tuple[str, ...],
    device: DeviceChoice,
    expect_bucket: str | None,
    case_seconds: float,
    case_memory: float,
    in_process: bool,
    report_dir: Path | None,
) -> None:
    """Run each CASE.json and print what was found.

    Takes cases as the fuzz suite writes them and files of corpus/regressions.

    \b
    Examples:
      tefuzz run .tefuzz/runs/*/failures/*.json
      tefuzz run corpus/regressions/caching.json                    # clean
      tefuzz run corpus/regressions/caching.json --revert caching   # finds the bug
      tefuzz run small.json --revert caching --expect-bucket 0a1b2c3d4e
      tefuzz run small.json --report-dir reports

    A report is the folder DIR/BUCKET with case.json, repro.py (a standalone program, which is run), report.md (for an
    issue) and report.html. A case belongs to the bucket of its strongest finding; of several cases the smallest is
    reported. Known issues are reported too.

    Cases run in a process of their own. One that crashes, hangs, exits or needs too much memory is a finding with the
    stacks of all threads, and the next case runs in a new process. Nothing was observed then, so there is no report.

    With --expect-bucket all other findings are ignored, and a known issue counts like any other finding. Reducers
    that ask for 0 while a case is interesting need the status 1 alone turned round, not those of errors:
    `tefuzz run case.json --expect-bucket ID; test $? -eq 1`.

    \b
    Exit codes:
      0  clean (known issues count as clean, and are said); with --expect-bucket: no finding in that bucket
      1  findings; with --expect-bucket: a finding in that bucket
      2  bad input: nothing was run
      3  an error of tefuzz itself
    """
    cases = _load(files)
    if report_dir is not None:
        writable_directory(report_dir)
    done: list[AnyJudgement] = []
    with ExitStack() as stack:
        if in_process:
            environment = start(device)
            judge: Judge | IsolatedJudge = Judge.of(environment)
            stack.enter_context(reverted(reverts))
        else:
            settings = settings_of(device, reverts, case_seconds, case_memory)
            judge, environment = isolated_judge(stack.enter_context(IsolatedRunner(settings)))
        click.echo(environment.header())
        with summary_on_interrupt(lambda: [_summary(done, len(cases))]):
            for path, case in cases:
                judgement = judge.judge(case)
                done.append(judgement)
                click.echo("\n".join([f"{path}: {_headline(judgement)}", *_details(judgement)]))
    if len(cases) > 1:
        click.echo(_summary(done, len(cases)))
    if report_dir is not None:
        observed = _observed(list(zip(files, done, strict=True)), device, reverts, expect_bucket)
        if observed:
            _report(report_dir, observed, environment, reverts, expect_bucket)
    raise click.exceptions.Exit(_exit_code(done, expect_bucket))


def _load(files: Sequence[Path]) -> list[tuple[Path, Case]]:
    """All cases, or an error that names every bad file: a typo must not cost the time of the other cases."""
    cases: list[tuple[Path, Case]] = []
    problems: list[str] = []
    for path in files:
        try:
            cases.append((path, load_regression(path).case))
        except CaseError as error:
            problems.append(str(error))
    if problems:
        raise BadInput("\n".join(problems))
    return cases


def _headline(judgement: AnyJudgement) -> str:
    if judgement.unexplained:
        return plural(len(judgement.unexplained), "finding")
    return "clean, but for known issues" if judgement.explained else "clean"


def _details(judgement: AnyJudgement) -> Iterator[str]:
    verdict = judgement.verdict
    case = verdict.case
    yield f"  model: {describe(case.layers, case.input.features)}"
    seconds = ", ".join(f"{phase} {value:.1f} s" for phase, value in verdict.seconds.items())
    yield f"  case:  {case.id}, TE ran {plural(verdict.te_linears, 'linear')}; {seconds}"
    if verdict.refusal is not None:
        yield f"  both sides refuse it alike: {verdict.refusal}"
    for finding in judgement.unexplained:
        yield f"  FOUND  {finding.bucket} [{finding.bucket.digest}]"
        yield textwrap.indent(finding.message, "         ")
    for finding, issue in judgement.explained:
        yield f"  KNOWN  {finding.bucket} [{finding.bucket.digest}]"
        yield f"         {issue.id}: {issue.title} ({issue.url})"


def _summary(done: Sequence[AnyJudgement], planned: int) -> str:
    found = sum(bool(judgement.unexplained) for judgement in done)
    known = sum(bool(judgement.explained) and not judgement.unexplained for judgement in done)
    counted = f"{len(done)} of {planned}" if len(done) < planned else str(planned)
    return f"{counted} cases run: {found} with findings, {known} with known issues only"


def _exit_code(done: Sequence[AnyJudgement], expect_bucket: str | None) -> ExitCode:
    if expect_bucket is None:
        return ExitCode.FINDINGS if any(judgement.unexplained for judgement in done) else ExitCode.CLEAN
    buckets = {finding.bucket for judgement in done for finding in judgement.verdict.findings}
    if any(expect_bucket in (str(bucket), bucket.digest) for bucket in buckets):
        click.echo(f"found in the expected bucket {expect_bucket}")
        return ExitCode.FINDINGS
    click.echo(f"nothing in the expected bucket {expect_bucket}")
    return ExitCode.CLEAN


def _observed(
    done: Sequence[tuple[Path, AnyJudgement]], device: DeviceChoice, reverts: tuple[str, ...], bucket: str | None
) -> list[tuple[Path, Judgement]]:
    """What reports are to be about, with all that was observed: what another process ran is run again in this one."""
    here = [(path, judgement) for path, judgement in done if isinstance(judgement, Judgement)]
    elsewhere = {
        id(judgement): (path, judgement)
        for path, judgement in done
        if isinstance(judgement, ReportedJudgement) and judgement.verdict.findings
    }
    if not elsewhere:
        return here
    judge = Judge.of(start(device))  # before anything that imports TE
    from harness.report.folder import subjects

    # It chooses by what both kinds of judgements have.
    for subject in subjects([cast(Judgement, judgement) for _, judgement in elsewhere.values()], bucket):
        if isinstance(subject.finding, ProcessFinding):
            click.echo(f"report: none for {subject.finding.bucket}: the case ended its process")
            continue
        path, judgement = elsewhere[id(subject.judgement)]
        with reverted(reverts):
            here.append((path, judge.judge(judgement.verdict.case)))
    return here


def _report(
    directory: Path,
    done: list[tuple[Path, Judgement]],
    environment: Environment,
    reverts: tuple[str, ...],
    expect_bucket: str | None,
) -> None:
    from harness.locate import locate
    from harness.report.folder import Written, subjects, write_report
    from harness.report.shrinking import history

    chosen = subjects([judgement for _, judgement in done], expect_bucket)
    files = {id(judgement): path for path, judgement in done}
    written: list[Written] = []
    with summary_on_interrupt(lambda: [f"{len(written)} of {plural(len(chosen), 'report')}"]):
        for subject in chosen:
            finding = subject.finding
            with reverted(reverts):
                where = locate(subject.judgement.verdict, finding)
            shrunk = history(files[id(subject.judgement)], str(finding.bucket))
            written.append(write_report(directory, subject, environment, reverts, where, shrunk))
            complaint = written[-1].trial.complaint
            shows = f"its program does not show the bug: {complaint}" if complaint else "its program shows the bug"
            click.echo(f"report: {written[-1].folder / 'report.html'} ({shows})")
