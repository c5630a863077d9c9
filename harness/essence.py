"""A finding in a few lines, for terminals and CI: what differs, where, the smallest model, and how to see it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.case import describe
from harness.isolation import ProcessFinding

if TYPE_CHECKING:
    from harness.checks.base import Finding
    from harness.isolation import ReportedFinding

LINE = 240


def essence(finding: Finding | ReportedFinding, replay: str) -> list[str]:
    """At most ten lines about a finding; ``replay`` is the command that shows it again."""
    case = finding.case
    lines = [f"{type(finding).__name__}: {seen(finding)}"]
    if finding.place:
        lines.append(f"  where:  {finding.place}")
    lines += [
        f"  bucket: {finding.bucket} [{finding.bucket.digest}]",
        f"  model:  {describe(case.layers, case.input.features)}",
        f"  case:   {case.id} (input {[*case.input.batch, case.input.features]} {case.input.dtype}, "
        f"{len(case.steps)} steps)",
        f"  replay: {replay}",
    ]
    return [line if len(line) <= LINE or "replay:" in line else f"{line[: LINE - 1]}…" for line in lines]


def seen(finding: Finding | ReportedFinding) -> str:
    """What was seen, on one line: of an exception its class and message, of the end of a process how it ended."""
    lines = finding.message.strip().splitlines() or [""]
    if isinstance(finding, ProcessFinding):
        return lines[0]
    return lines[0].rstrip(":") if len(lines) == 1 else f"{lines[0].rstrip(':')}: {lines[-1].strip()}"
