"""``tefuzz bisect``: which fix or release decides a finding, and where it begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.case import Case, describe
from harness.commands.bisect_versions import bisect_versions, parse_versions
from harness.commands.common import (
    BadInput,
    ExitCode,
    bucket_id,
    device_option,
    revert_option,
    start,
    summary_on_interrupt,
)
from harness.corpus import load_regression
from harness.device import DeviceChoice
from harness.environments import Environments
from harness.fixes import reverted
from harness.judge import Judge

if TYPE_CHECKING:
    from harness.bisect_fixes import Trial


@click.command()
@click.argument("file", metavar="CASE.json", type=click.Path(path_type=Path))
@revert_option
@device_option
@click.option(
    "--bucket", metavar="ID", callback=bucket_id, help="The finding to follow. Default: the strongest one of the case."
)
@click.option(
    "--versions",
    metavar="PACKAGE=FROM..TO",
    callback=parse_versions,
    help="Find the release of transformer-engine or lightning-thunder in which the case changed its verdict.",
)
def bisect(
    file: Path,
    reverts: tuple[str, ...],
    device: DeviceChoice,
    bucket: str | None,
    versions: tuple[str, str] | None,
) -> None:
    """Say which fix decides whether CASE.json shows a bug, and where that begins.

    The case is run as installed, with each fix undone, and with the fixes undone that --revert names. Then it is run
    once more with the value of each layer as a further output, and in float64: which trace is wrong, which value or
    FP8 state differs first, and which side is further from the truth?

    With --versions the case is run with other releases instead, which get environments below .tefuzz/environments; they
    are kept. PACKAGE=A,B,C names the releases one by one. pip takes its usual settings (PIP_INDEX_URL and so on).

    \b
    Examples:
      tefuzz bisect corpus/regressions/caching.json
      tefuzz bisect .tefuzz/runs/*/failures/0a1b2c3d4e.json --revert caching

      tefuzz bisect --versions transformer-engine=2.9.0..2.20.2 CASE.json
      tefuzz bisect --versions lightning-thunder=0.2.4,0.2.6 corpus/regressions/remat.json

    \b
    Exit codes:
      0  nothing was found, with no fix undone; with --versions: the verdict is the same at both ends
      1  something was found; with --versions: the release in which the verdict changed
      2  bad input: nothing was run
      3  an error of tefuzz itself
    """
    if versions is not None:
        if reverts:
            raise BadInput("--versions runs releases as they are: leave out --revert.")
        bisect_versions(file, *versions, device, bucket, Environments())
    case = load_regression(file).case
    judge = Judge.of(start(device))
    click.echo(f"{file}: {describe(case.layers, case.input.features)}")
    done = _trials(judge, case, reverts)
    # As it was found, then as installed, then with the first fix without which there is something.
    order = sorted(done, key=lambda trial: (trial.undone != reverts, trial.undone != ()))
    followed = _followed(order, bucket)
    if followed is None:
        click.echo("nothing was found" if bucket is None else f"nothing in bucket {bucket}")
        raise click.exceptions.Exit(ExitCode.CLEAN)
    trial, chosen = followed
    click.echo(f"{chosen}\n  fix: {_conclusion(done, chosen)}")
    for line in _place(trial, chosen):
        click.echo(f"  {line}")
    raise click.exceptions.Exit(ExitCode.FINDINGS)


def _trials(judge: Judge, case: Case, reverts: tuple[str, ...]) -> list[Trial]:
    """All trials; each is printed when it is done."""
    from harness.bisect_fixes import trials

    done: list[Trial] = []
    with summary_on_interrupt(lambda: [f"{len(done)} trials"]):
        for trial in trials(lambda tried: judge.judge(tried).verdict, case, reverts):
            done.append(trial)
            undone = f"without {' and '.join(trial.undone)}" if trial.undone else "as installed"
            first = next(iter(trial.verdict.findings), None)
            more = f" and {len(trial.verdict.findings) - 1} more" if len(trial.verdict.findings) > 1 else ""
            click.echo(f"  {undone:<22} " + (f"{first.bucket} [{first.bucket.digest}]{more}" if first else "clean"))
    return done


def _followed(trials: list[Trial], bucket: str | None) -> tuple[Trial, str] | None:
    """The first trial with a finding in the bucket, and that bucket in full; None where there is none."""
    for trial in trials:
        finding = trial.finding(bucket) if bucket is not None else next(iter(trial.verdict.findings), None)
        if finding is not None:
            return trial, str(finding.bucket)
    return None


def _conclusion(done: list[Trial], bucket: str) -> str:
    from harness.bisect_fixes import conclusion

    return conclusion(done, bucket)


def _place(trial: Trial, bucket: str) -> list[str]:
    from harness.locate import locate

    finding = trial.finding(bucket)
    assert finding is not None
    with reverted(trial.undone):
        return locate(trial.verdict, finding)
