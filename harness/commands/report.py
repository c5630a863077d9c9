"""``tefuzz report``: an index of what a fuzz run found."""

from __future__ import annotations

from pathlib import Path

import click

from harness.commands.common import BadInput, writable_directory

RUNS = Path(".tefuzz") / "runs"


@click.command()
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--report-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the index goes, beside the reports that `tefuzz run --report-dir` wrote. Default: RUN/reports.",
)
def report(run: Path | None, report_dir: Path | None) -> None:
    """Write index.html over the buckets of a fuzz run: how many cases each, new or known, and what was covered.

    RUN is the directory of a run, the newest one below .tefuzz/runs if it is not given. The runs beside it tell when a
    bucket was first and last seen, and which ones are gone. Nothing is run.

    \b
    Examples:
      tefuzz report
      tefuzz run .tefuzz/runs/20261201-101500-42/failures/*.json --report-dir reports
      tefuzz report .tefuzz/runs/20261201-101500-42 --report-dir reports

    Exit codes: 0 written; 2 there is no such run, or nothing in it; 3 an error of tefuzz itself.
    """
    from harness.report.index import write_index

    chosen = run or _newest_run()
    click.echo(write_index(chosen, writable_directory(report_dir or chosen / "reports")))


def _newest_run() -> Path:
    runs = [path for path in RUNS.glob("*") if path.is_dir()]
    if not runs:
        raise BadInput(f"there is no fuzz run below {RUNS}: run `pytest fuzz/` first, or name the directory of a run.")
    return max(runs, key=lambda path: path.stat().st_mtime)
