"""In which release did a case change its verdict? The case is run in environments with one release each.

``change`` is the search alone; ``verdict_with`` asks one environment.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device import DeviceChoice
from harness.environments import Environments, ReleaseError

HANG_SECONDS = 600.0
"""Imports included."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a case shows under one release."""

    version: str
    verdict: str | None
    """Its buckets, ``clean``, ``crash`` or ``hang``; None when the release cannot be tried."""
    problem: str = ""
    """Why it cannot be tried."""


@dataclass(frozen=True, slots=True)
class Change:
    """Between which two releases the verdict changed, or that it did not."""

    before: Tried
    after: Tried
    untried: tuple[str, ...] = ()
    """Releases between the two that cannot be tried: it may have changed in one of them."""

    @property
    def found(self) -> bool:
        """Whether the verdict is another one."""
        return self.before.verdict != self.after.verdict


def change(versions: Sequence[str], try_version: Callable[[str], Tried]) -> Change:
    """Find the first release, of ``versions`` in order, whose verdict is not that of the first any more.

    When it changed more than once, one of the changes is found. A release that cannot be tried is passed over, at the
    ends too; ``ReleaseError`` when fewer than two can be tried. About log2 of the number of releases are tried.
    """
    tried: dict[str, Tried] = {}

    def ask(version: str) -> Tried:
        if version not in tried:
            tried[version] = try_version(version)
        return tried[version]

    def usable(version: str) -> bool:
        return ask(version).verdict is not None

    first = next((index for index in range(len(versions)) if usable(versions[index])), None)
    last = next((index for index in reversed(range(len(versions))) if usable(versions[index])), None)
    if first is None or last is None or first == last:
        problems = "; ".join(f"{one.version}: {one.problem}" for one in tried.values() if one.verdict is None)
        raise ReleaseError(f"fewer than two releases can be tried ({problems or 'give at least two'})")
    before, after = first, last
    if ask(versions[before]).verdict == ask(versions[after]).verdict:
        return Change(ask(versions[before]), ask(versions[after]))
    while middle := _untried_middle(versions, before, after, tried):
        if not usable(versions[middle]):
            continue
        if ask(versions[middle]).verdict == ask(versions[first]).verdict:
            before = middle
        else:
            after = middle
    return Change(ask(versions[before]), ask(versions[after]), tuple(versions[before + 1 : after]))


def _untried_middle(versions: Sequence[str], before: int, after: int, tried: dict[str, Tried]) -> int | None:
    """The index closest to the middle that was not tried yet; 0 can be none, for it is an end."""
    left = [index for index in range(before + 1, after) if versions[index] not in tried]
    return min(left, key=lambda index: abs(2 * index - before - after)) if left else None


def verdict_with(
    environments: Environments, package: str, version: str, case: Path, device: DeviceChoice, bucket: str | None = None
) -> Tried:
    """Run the case with a release. With ``bucket`` the verdict is only whether there is a finding in that bucket."""
    try:
        python = environments.interpreter(package, version)
    except ReleaseError as error:
        return Tried(version, None, str(error))
    try:
        done = subprocess.run(
            [python, "-X", "faulthandler", "-m", "harness.version_probe", str(case), device],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Tried(version, "hang")
    if done.returncode < 0:
        return Tried(version, "crash")
    if done.returncode:
        return Tried(version, None, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    buckets: list[str] = json.loads(done.stdout.splitlines()[-1])["buckets"]
    return Tried(version, _verdict(buckets, bucket))


def _verdict(buckets: Sequence[str], bucket: str | None) -> str:
    if bucket is None:
        return ", ".join(buckets) or "clean"
    names = {name for full in buckets for name in (full, hashlib.sha256(full.encode()).hexdigest()[:10])}
    return f"in bucket {bucket}" if bucket in names else f"not in bucket {bucket}"
