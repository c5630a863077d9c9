"""``tefuzz bisect --versions``: in which release a case changed its verdict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import click
from packaging.utils import canonicalize_name

from harness.bisect_versions import Tried, change, verdict_with
from harness.commands.common import BadInput, ExitCode, summary_on_interrupt, writable_directory
from harness.corpus import load_regression
from harness.device import DeviceChoice
from harness.environments import PACKAGES, Environments, ReleaseError


def parse_versions(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """``PACKAGE=...`` as the package and what follows."""
    if value is None:
        return None
    package, equals, releases = value.partition("=")
    name = str(canonicalize_name(package))
    if not equals or name not in PACKAGES or not re.fullmatch(r"[^,.][^,]*\.\.[^,]+|[^,]+(,[^,]+)+", releases):
        raise click.BadParameter(
            f"{value!r}: give PACKAGE=FROM..TO or PACKAGE=A,B,C, where PACKAGE is {' or '.join(PACKAGES)}."
        )
    return name, releases


def bisect_versions(
    file: Path, package: str, releases: str, device: DeviceChoice, bucket: str | None, environments: Environments
) -> NoReturn:
    """Try releases until it is known between which two the verdict of the case changed, and end with the exit code."""
    load_regression(file)  # a bad file is refused before anything is built
    writable_directory(environments.directory)
    try:
        versions = _versions(environments, package, releases)
        click.echo(f"{package}: {len(versions)} releases from {versions[0]} to {versions[-1]}")
        with summary_on_interrupt(lambda: [f"the environments are kept in {environments.directory}"]):
            found = change(versions, lambda version: _told(environments, package, version, file, device, bucket))
    except ReleaseError as error:
        raise BadInput(str(error)) from error
    if not found.found:
        click.echo(f"no change: {found.before.verdict} in {found.before.version} and {found.after.version}")
        raise click.exceptions.Exit(ExitCode.CLEAN)
    click.echo(f"changed in {package} {found.after.version}")
    for tried in (found.before, found.after):
        click.echo(f"  {tried.version:<8} {tried.verdict}")
    if found.untried:
        click.echo(f"  or in one of these, which cannot be tried: {', '.join(found.untried)}")
    raise click.exceptions.Exit(ExitCode.FINDINGS)


def _versions(environments: Environments, package: str, releases: str) -> list[str]:
    first, dots, last = releases.partition("..")
    if dots:
        return environments.releases(package, first, last)
    return [version.strip() for version in releases.split(",")]


def _told(
    environments: Environments, package: str, version: str, file: Path, device: DeviceChoice, bucket: str | None
) -> Tried:
    """Try a release and say what came of it."""
    click.echo(f"  {version:<8} ", nl=False)
    tried = verdict_with(environments, package, version, file, device, bucket)
    click.echo(tried.verdict or f"cannot be tried: {tried.problem}")
    return tried
