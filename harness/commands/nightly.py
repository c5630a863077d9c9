"""``tefuzz nightly``: what a runner does every night."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from harness.commands.common import BadInput, device_option, summary_on_interrupt, writable_directory
from harness.device import DeviceChoice
from harness.nightly import ROOT, Nightly, Plan


@click.command()
@click.argument("pytest_options", metavar="[-- PYTEST-OPTION...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--time",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=3600,
    show_default=True,
    help="How long to fuzz; replays, shrinking what is found last and reports come on top.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".tefuzz") / "nightly",
    show_default=True,
    help="What goes from night to night: working corpus, Hypothesis' database, opened buckets. Restore and keep it.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports") / "nightly",
    show_default=True,
    help="Reports, records and logs of this night. Upload it, also when the run fails.",
)
@click.option("-n", "workers", metavar="N", default="auto", show_default=True, help="Processes at a time.")
@device_option
@click.option(
    "--max-new",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Report and open at most so many new buckets; the others wait.",
)
@click.option(
    "--open",
    "open_command",
    metavar="COMMAND",
    default="",
    help="Run COMMAND FOLDER for each new bucket; with status 0 the bucket counts as opened and comes no more.",
)
def nightly(
    pytest_options: tuple[str, ...],
    seconds: float,
    state: Path,
    output: Path,
    workers: str,
    device: DeviceChoice,
    max_new: int,
    open_command: str,
) -> None:
    """Replay what is kept, fuzz for a set time with fresh seeds, minimise the corpus, report and open what is new.

    Every step is done, whatever the others say; OUTPUT has a log of each. docs/nightly.md has workflows for it.

    \b
    Examples:
      tefuzz nightly --time 28800
      tefuzz nightly --time 28800 --state /cache/tefuzz --output out --open .ci/open-issue
      tefuzz nightly --time 600 -- -k "te_v2 or torch or fuser"    # without Thunder's TE executor v1

    \b
    Exit codes, the first that applies:
      3    an error of tefuzz itself
      1    something new was found, or a kept case fails
      4    a known issue no longer fails
      2    a kept file is broken, or bad options
      0    none of these
      130  interrupted; the state has what was found so far
    """
    if not (ROOT / "fuzz").is_dir():
        raise BadInput(f"{ROOT}: there is no fuzz/ here. Install tefuzz from a checkout: `pip install -e .`.")
    plan = Plan(
        state=writable_directory(state).absolute(),
        output=writable_directory(output).absolute(),
        seconds=seconds,
        workers=workers,
        device=device,
        max_new=max_new,
        open_command=tuple(shlex.split(open_command)),
        pytest_options=pytest_options,
    )
    with summary_on_interrupt(lambda: [f"what was found so far is in {state}"]):
        code = Nightly(plan, click.echo).run()
    raise click.exceptions.Exit(code)
