"""What makes two findings the same bug. Cheap to import: findings cross processes by their bucket and their words."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from harness.case import Case, describe


@dataclass(frozen=True, slots=True)
class Bucket:
    """What makes two findings the same bug. No part depends on sizes or positions, so shrinking can keep the bucket."""

    check: str
    stage: str
    where: str
    subject: str
    recipe: str

    def __str__(self) -> str:
        return "/".join((self.check, self.stage, self.where, self.subject, self.recipe)).replace(" ", "-")

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that stand for the bucket in file names and on the command line."""
        return digest(str(self))


def digest(bucket: str) -> str:
    """``Bucket.digest`` of a bucket that is there as text."""
    return hashlib.sha256(bucket.encode()).hexdigest()[:10]


def recipe_name(case: Case) -> str:
    """The last part of a bucket."""
    recipe = case.precision.recipe
    return "none" if recipe is None else type(recipe).__name__


def finding_text(message: str, bucket: Bucket, case: Case) -> str:
    """How a finding is shown."""
    return (
        f"{message}\n"
        f"  bucket: {bucket}\n"
        f"  model:  {describe(case.layers, case.input.features)}\n"
        f"  case:   {case.id} (input {[*case.input.batch, case.input.features]} {case.input.dtype}, "
        f"{len(case.steps)} steps)"
    )
