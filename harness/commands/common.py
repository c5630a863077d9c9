"""What the subcommands share: exit codes, options, and how they begin and end."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.device import DeviceChoice, DeviceError, Environment, activate
from harness.exit_codes import ExitCode as ExitCode
from harness.fixes import REVERTS
from harness.isolation import IsolatedRunner, Settings
from harness.judge import IsolatedJudge

Command = TypeVar("Command", bound=Callable[..., Any])


class BadInput(click.ClickException):
    """What the user gave cannot be used; the message says why and what to do."""

    exit_code = ExitCode.BAD_INPUT


def writable_directory(path: Path) -> Path:
    """``path``, which need not be there yet; ``BadInput`` before any time is spent if nothing can be written there."""
    existing = next(directory for directory in (path, *path.absolute().parents) if directory.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise BadInput(f"{path}: nothing can be written there ({error.strerror}). Name another directory.") from error
    return path


def device_option(command: Command) -> Command:
    """``--device``."""
    return click.option(
        "--device",
        type=click.Choice(["auto", "cuda", "cpu"]),
        default="auto",
        show_default=True,
        help="cuda: the real TE extension; cpu: its emulation; auto: cuda where there is a device.",
    )(command)


def revert_option(command: Command) -> Command:
    """``--revert``, repeatable."""
    return click.option(
        "--revert",
        "reverts",
        type=click.Choice(list(REVERTS)),
        multiple=True,
        help="Undo this fix in the running process, to see that its bug is found (repeatable).",
    )(command)


def bucket_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what names no bucket."""
    if value is None or re.fullmatch("[0-9a-f]{10}", value) or value.count("/") >= 4:
        return value
    raise click.BadParameter(
        f"{value!r} is no bucket: give its ten hexadecimal digits or check/stage/where/subject/recipe, as `run` prints."
    )


def start(choice: DeviceChoice) -> Environment:
    """Import the subjects for a device, or say what is missing."""
    try:
        return activate(choice)
    except DeviceError as error:
        # The message names the option of the fuzz suite.
        raise BadInput(str(error).replace("--tefuzz-device", "--device")) from error
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{error.name} is not installed. Install tefuzz with what it needs: `pip install -e .` in its checkout."
        ) from error


def limit_options(command: Command) -> Command:
    """``--case-seconds`` and ``--case-memory``."""
    seconds = click.option(
        "--case-seconds",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=300.0,
        show_default=True,
        help="After so long a case counts as hung.",
    )
    memory = click.option(
        "--case-memory",
        metavar="GIB",
        type=click.FloatRange(min=0, min_open=True),
        default=8.0,
        show_default=True,
        help="A case that needs more has run out of memory. Without effect on CUDA.",
    )
    return seconds(memory(command))


def settings_of(device: DeviceChoice, reverts: tuple[str, ...], seconds: float, gib: float) -> Settings:
    """What the options say about the process that runs the cases."""
    return Settings(device=device, reverts=reverts, case_seconds=seconds, case_memory=int(gib * 2**30))


def isolated_judge(runner: IsolatedRunner) -> tuple[IsolatedJudge, Environment]:
    """A judge whose cases run in another process, and where it runs; or say what is missing."""
    try:
        environment = runner.ready().environment
    except DeviceError as error:
        raise BadInput(str(error).replace("--tefuzz-device", "--device")) from error
    return IsolatedJudge.of(runner), environment


@contextmanager
def summary_on_interrupt(summary: Callable[[], Iterable[str]]) -> Iterator[None]:
    """On Ctrl-C print what was done so far, then end with the exit code for it."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Interrupted. Done so far:")
        for line in summary():
            click.echo(line)
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


def plural(count: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
