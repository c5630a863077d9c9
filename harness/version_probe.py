"""What a case shows with what is installed, as JSON: ``python -m harness.version_probe CASE.json DEVICE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.corpus import load_regression
from harness.device import activate
from harness.judge import Judge


def main(path: Path, device: Any) -> None:
    """Run the case and print the buckets of its findings, known issues among them, and the versions."""
    environment = activate(device)
    verdict = Judge.of(environment).judge(load_regression(path).case).verdict
    buckets = sorted({str(finding.bucket) for finding in verdict.findings})
    answer = {"versions": dict(environment.versions), "buckets": buckets, "refusal": verdict.refusal}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
