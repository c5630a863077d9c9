"""The command ``tefuzz``. Its subcommands are in ``harness.commands``."""

from __future__ import annotations

import traceback
from typing import Any

import click

from harness.case import CaseError
from harness.commands.bisect import bisect
from harness.commands.campaign import campaign
from harness.commands.common import BadInput, ExitCode
from harness.commands.corpus import corpus
from harness.commands.doctor import doctor
from harness.commands.mutants import mutants
from harness.commands.nightly import nightly
from harness.commands.reduce import reduce
from harness.commands.replay import replay
from harness.commands.report import report
from harness.commands.run import run
from harness.commands.stats import stats
from harness.fixes import FixError


class _Tefuzz(click.Group):
    """Ends every subcommand with the exit code that the help promises."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (CaseError, FixError) as error:
            raise BadInput(str(error)) from error
        except KeyboardInterrupt:
            click.echo("Interrupted before anything was done.", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except Exception:  # noqa: BLE001  the boundary: what arrives here is our own bug, and has an exit code
            click.echo(traceback.format_exc(), err=True)
            click.echo("This is an error of tefuzz itself, not of the subjects: please report it.", err=True)
            ctx.exit(ExitCode.OWN_ERROR)


@click.group(cls=_Tefuzz, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tefuzz", prog_name="tefuzz")
def main() -> None:
    """Find bugs of Transformer Engine under the Lightning Thunder JIT, and look at what was found.

    \b
    A first hour:
      tefuzz doctor                               # is everything there?
      pytest fuzz/ -n auto                        # fuzz; failing cases are kept below .tefuzz/runs
      tefuzz run .tefuzz/runs/*/failures/*.json   # run the kept cases again
      tefuzz reduce CASE.json                     # make one smaller
      tefuzz bisect CASE.json                     # which fix decides a finding?
      tefuzz report                               # what the newest run found and covered, as a page
      tefuzz replay                               # do old bugs stay away?
      tefuzz corpus                               # what fuzz runs kept so far
      tefuzz stats                                # what is drawn, and how often?
      tefuzz nightly --time 3600                  # replay, fuzz, minimise and report, as a night would
      tefuzz campaign --minutes 10                # fuzz on a Ray cluster, or on this machine
      tefuzz mutants                              # would regressions of Thunder and TE be found?

    Each subcommand explains itself: tefuzz run --help
    """


for command in (
    doctor,
    run,
    reduce,
    bisect,
    replay,
    corpus,
    report,
    stats,
    mutants,
    campaign,
    nightly,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
