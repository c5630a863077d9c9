"""Known issues: findings that are understood, and do not fail a run in the versions that they name.

``corpus/known_issues.toml`` lists them. An issue hides only findings whose bucket matches its patterns, in cases that
have its features, under the versions that it names.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from harness.case import Case, CaseError, Data
from harness.device import SUBJECTS
from harness.features import features

if TYPE_CHECKING:
    from harness.bucket import Bucket

DEFAULT_FILE = Path(__file__).parent.parent / "corpus" / "known_issues.toml"

ANY_CHECK = "a check that is not there"
"""No pattern may match this: one that did would hide findings of every kind."""


class BucketPattern(Data, frozen=True, kw_only=True):
    """Regular expressions that the parts of a bucket must match as a whole; a part left out matches anything."""

    check: str
    stage: str = ".*"
    where: str = ".*"
    subject: str = ".*"


class KnownIssue(Data, frozen=True, kw_only=True):
    """One understood finding."""

    id: str
    title: str
    url: str
    """An upstream issue or the section of docs/findings.md that explains it."""
    versions: dict[str, str]
    """Package -> version specifier, for example ``lightning-thunder = ">=0.2.5,<0.2.7"``."""
    case: str
    """A case that shows it, relative to the file of known issues."""
    bucket: BucketPattern
    features: tuple[str, ...] = ()
    """Features (``harness.features``) that a case must have for the issue to apply."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://", "docs/")):
            raise ValueError(f"issue {self.id!r}: url {self.url!r} is neither a URL nor a document below docs/")
        for field in ("check", "stage", "where", "subject"):
            try:
                re.compile(getattr(self.bucket, field))
            except re.error as error:
                raise ValueError(f"issue {self.id!r}: bucket.{field} is no regular expression: {error}") from error
        if re.fullmatch(self.bucket.check, ANY_CHECK):
            raise ValueError(
                f"issue {self.id!r}: bucket.check = {self.bucket.check!r} would hide whatever is found: name the checks"
            )
        for package, specifier in self.versions.items():
            if canonicalize_name(package) not in map(canonicalize_name, SUBJECTS):
                raise ValueError(f"issue {self.id!r}: versions name {package!r}; known are {', '.join(SUBJECTS)}")
            try:
                SpecifierSet(specifier)
            except InvalidSpecifier as error:
                raise ValueError(f"issue {self.id!r}: versions.{package} = {specifier!r} is no specifier") from error

    def applies_to_versions(self, installed: dict[str, str]) -> bool:
        """Whether the issue claims these versions."""
        present = {canonicalize_name(package): version for package, version in installed.items()}
        claimed = {canonicalize_name(package): SpecifierSet(text) for package, text in self.versions.items()}
        return all(
            package in present and specifier.contains(present[package], prereleases=True)
            for package, specifier in claimed.items()
        )

    def explains(self, case: Case, bucket: Bucket) -> bool:
        """Whether a finding in ``bucket`` of ``case`` is this issue."""
        pattern = self.bucket
        return set(self.features) <= features(case) and all(
            re.fullmatch(getattr(pattern, field), getattr(bucket, field))
            for field in ("check", "stage", "where", "subject")
        )


class KnownIssues(Data, frozen=True, kw_only=True):
    """The content of a file of known issues."""

    issue: tuple[KnownIssue, ...] = ()

    def __post_init__(self) -> None:
        for name, times in Counter(issue.id for issue in self.issue).items():
            if times > 1:
                raise ValueError(f"issue {name!r} is there {times} times: give each an id of its own")

    def explaining(self, case: Case, bucket: Bucket, installed: dict[str, str]) -> KnownIssue | None:
        """The first issue that explains a finding, if any does."""
        for issue in self.issue:
            if issue.applies_to_versions(installed) and issue.explains(case, bucket):
                return issue
        return None

    def claiming(self, installed: dict[str, str]) -> list[KnownIssue]:
        """The issues that claim the installed versions: they have to fail."""
        return [issue for issue in self.issue if issue.applies_to_versions(installed)]


def load_known_issues(path: Path = DEFAULT_FILE) -> KnownIssues:
    """Read a file of known issues; ``CaseError`` says what is wrong with it."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), KnownIssues)
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: not TOML ({error}). Correct the line.") from error
    except msgspec.ValidationError as error:
        raise CaseError(f"{path}: {error}. See harness/known_issues.py for the fields.") from error
