"""``tefuzz doctor``: can this environment be fuzzed, and what is known about it?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import click

from harness.commands.common import ExitCode, device_option, start
from harness.device import DeviceChoice, Environment
from harness.fixes import FIXES, Fix
from harness.judge import Judge


@click.command()
@device_option
def doctor(device: DeviceChoice) -> None:
    """Show versions, device, fixes, known issues and caches.

    Whether a fix is there is found out by making Thunder and Transformer Engine do what it changed, not from
    version numbers.

    \b
    Examples:
      tefuzz doctor
      tefuzz doctor --device cuda    # fails unless the real TE extension can be used

    Exit codes: 0 all fixes are there; 1 one is missing (the release that has it is named); 2 the device or a
    package cannot be used; 3 an error of tefuzz itself.
    """
    environment = start(device)
    for line in _environment_lines(environment):
        click.echo(line)
    missing = [fix for fix in FIXES.values() if not _show_fix(fix)]
    issues = Judge.of(environment).claimed_issues()
    click.echo("known issues in these versions:" if issues else "known issues: none in these versions")
    for issue in issues:
        click.echo(f"  {issue.id}: {issue.title} ({issue.url})")
    for line in _cache_lines(environment):
        click.echo(line)
    if missing:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _environment_lines(environment: Environment) -> Iterator[str]:
    yield f"tefuzz {importlib.metadata.version('tefuzz')}, Python {platform.python_version()}"
    for package, version in environment.versions:
        yield f"{package} {version}"
    extension = "CPU EMULATION of TE's extension" if environment.emulated else "real TE extension"
    yield f"device: {environment.device} ({environment.device_name}), {extension}"


def _show_fix(fix: Fix) -> bool:
    """Print whether a fix is present, and return it."""
    present = fix.is_present()
    state = "present" if present else f"MISSING: install {fix.first_release} or newer"
    click.echo(f"fix {fix.name}: {state} ({fix.project}#{fix.number}: {fix.title})")
    return present


def _cache_lines(environment: Environment) -> Iterator[str]:
    for directory, use in ((Path(".tefuzz"), "records of fuzz runs"), (Path(".hypothesis"), "example database")):
        state = "writable" if _is_writable(directory) else "NOT WRITABLE: run in a directory that you can write"
        yield f"cache {directory.absolute()}: {state} ({use})"
    if environment.emulated:
        from harness.emulation.hook import code_cache

        modules = code_cache._directory()
        state = "none: imports take a second longer; set XDG_CACHE_HOME to a private directory"
        yield f"cache {modules or state} (rewritten modules of TE)"


def _is_writable(directory: Path) -> bool:
    """Whether ``directory``, or what it would be made in, can be written."""
    existing = directory if directory.exists() else directory.absolute().parent
    return os.access(existing, os.W_OK | os.X_OK)
