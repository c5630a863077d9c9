"""Environments with another release of a subject: built beside the running one, and kept.

Each is a virtual environment that sees the packages of the running one behind its own: it holds the other release and
what only that one needs, a few megabytes, and all else is equal.
"""

from __future__ import annotations

import importlib.metadata
import re
import site
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

DEFAULT_DIRECTORY = Path(".tefuzz") / "environments"
PACKAGES = ("transformer-engine", "lightning-thunder")
"""What can be had in another release; torch is the same in all environments."""


class ReleaseError(RuntimeError):
    """An environment or a list of releases cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments below one directory."""

    directory: Path = DEFAULT_DIRECTORY
    pip_options: tuple[str, ...] = ()

    def interpreter(self, package: str, version: str) -> Path:
        """The Python of the environment with this release, which is built when it is not there or not complete."""
        place = (self.directory / f"{package}-{version}").absolute()
        python, stamp = place / "bin" / "python", place / "tefuzz-base"
        base = "\n".join((sys.prefix, sys.version, importlib.metadata.version("torch")))
        if not stamp.exists() or stamp.read_text() != base:
            self._build(place, package, version)
            stamp.write_text(base)
        return python

    def releases(self, package: str, first: str, last: str) -> list[str]:
        """All releases from ``first`` to ``last``, the oldest first, as the package index lists them."""
        done = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", *self.pip_options, package],
            capture_output=True,
            text=True,
            check=False,
        )
        listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
        if listed is None:
            raise ReleaseError(
                f"the releases of {package} cannot be listed ({_last_line(done.stderr)}). "
                f"Name them: {package}={first},...,{last}"
            )
        return between([word.strip() for word in listed[1].split(",")], package, first, last)

    def _build(self, place: Path, package: str, version: str) -> None:
        _call([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)])
        python = str(place / "bin" / "python")
        ours = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        (Path(ours.stdout.strip()) / "tefuzz_base.pth").write_text("\n".join(lines) + "\n")
        constraint = place / "constraints.txt"
        constraint.write_text(f"torch=={importlib.metadata.version('torch')}\n")
        options = ["--quiet", "--disable-pip-version-check", "--constraint", str(constraint), *self.pip_options]
        _call([sys.executable, "-m", "pip", "--python", python, "install", *options, *_requirements(package, version)])


def between(listed: Sequence[str], package: str, first: str, last: str) -> list[str]:
    """The releases from ``first`` to ``last``; ``ReleaseError`` when an end is not listed."""
    known = {}
    for text in listed:
        try:
            known[Version(text)] = text
        except InvalidVersion:
            continue
    ends = []
    for text in (first, last):
        try:
            ends.append(Version(text))
        except InvalidVersion as error:
            raise ReleaseError(f"{text!r} is no version of {package}") from error
        if ends[-1] not in known:
            raise ReleaseError(f"{package} has no release {text}: there are {', '.join(map(str, sorted(known)))}")
    return [
        known[version]
        for version in sorted(known)
        if min(ends) <= version <= max(ends) and (not version.is_prerelease or version in ends)
    ]


def _requirements(package: str, version: str) -> list[str]:
    """What pip is asked for; with the compiled extension of TE, if the running environment has that."""
    cores = [
        f"core-{name.removeprefix('transformer-engine-')}"
        for name in (canonicalize_name(found.metadata["Name"]) for found in importlib.metadata.distributions())
        if re.fullmatch(r"transformer-engine-cu\d+", name)
    ]
    if package == "transformer-engine" and cores:
        return ["--no-build-isolation", f"transformer-engine[{cores[0]},pytorch]=={version}"]
    return [f"{package}=={version}"]


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"`python {' '.join(command[1:3])}` failed: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if not line.startswith("WARNING")]
    return lines[-1] if lines else "it said nothing"
