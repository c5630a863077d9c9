"""Proves on real releases that the harness finds the remat bug where it is and is silent where it was fixed.

    python tests/releases/run_releases.py

The interpreter that runs this has the fixed release. The other one, Thunder 0.2.4 with the bug in it, gets a virtual
environment of its own beside the checkout's (about 1 GB, made once). Exit status 0 when every expectation holds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe.py")
RELEASE = "0.2.4"
TORCH = "torch==2.13.0"
PACKAGES = (
    f"lightning-thunder=={RELEASE}",
    "transformer-engine==2.9.0",
    "hypothesis",
    "msgspec>=0.20,<0.30",
    "numpy>=1.26,<3",
    "packaging",
    "pydantic>=2.5,<3",
    "pytest",
    "pytest-xdist",
)
NAMES = "name-in-forward-and-backward"
EARLY = "used-before-definition"
# v2's transform merges equal calls of forward and backward. Where names overlap it merges too much: what is left uses a
# name before its definition, which shows before anything runs.
IN_RELEASE = {
    "linear-relu-linear in a checkpoint | torch": {NAMES},
    "linear-relu-linear in a checkpoint | transformer_engine_v1": {NAMES},
    "squared relu in a checkpoint, linear | torch": {NAMES},
    "squared relu in a checkpoint, linear | transformer_engine_v1": {NAMES},
    "squared relu in a checkpoint, linear | transformer_engine": {NAMES, EARLY, "exception"},
}
"""Case -> the structural checks that must fire in the release with the bug; in all other cases none may."""
STRUCTURAL = {NAMES, EARLY, "name-computed-twice", "used-after-deletion", "exception", "state-asked-again"}
"""Checks that judge names; v1's recomputation also gives other numbers, in every release."""


def main() -> int:
    """Run both probes and say what differs from the expectations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", type=Path, default=ROOT / f".venv-thunder-{RELEASE}", help="where to make it")
    parser.add_argument("--pip-options", default="", help="extra options for pip install, as one string")
    arguments = parser.parse_args()
    python = _environment(arguments.environment, shlex.split(arguments.pip_options))
    wrong: list[str] = []
    for interpreter, expected, missing in ((python, IN_RELEASE, ["remat"]), (Path(sys.executable), {}, [])):
        answer = _probe(interpreter)
        wrong += _judge(answer, expected, missing)
        _show(answer)
    for line in wrong:
        sys.stdout.write(f"WRONG: {line}\n")
    return 1 if wrong else 0


def _environment(path: Path, pip_options: list[str]) -> Path:
    """The interpreter of the release's environment, which is made when it is not there or not complete."""
    python = path / "bin" / "python"
    stamp = path / ".tefuzz-installed"
    content = hashlib.sha256("\n".join((TORCH, *PACKAGES)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == content:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", path], check=True)
    # torch first: Thunder and TE must not choose its version.
    for packages in ([TORCH], [TORCH, *PACKAGES]):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pip_options, *packages], check=True)
    stamp.write_text(content)
    return python


def _probe(python: Path) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([python, PROBE], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def _judge(answer: dict[str, Any], expected: dict[str, set[str]], missing: list[str]) -> Iterator[str]:
    release = f"Thunder {answer['versions']['lightning-thunder']}"
    if answer["missing"] != missing:
        yield f"{release}: fixes missing: {answer['missing']}, should be {missing}"
    for case, buckets in answer["findings"].items():
        structural = {bucket.split("/")[0] for bucket in buckets} & STRUCTURAL
        must = expected.get(case, set())
        if structural != must:
            yield f"{release}: {case}: should find {sorted(must)}, found {sorted(structural)}"


def _show(answer: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    sys.stdout.write(f"{versions}; fixes missing: {', '.join(answer['missing']) or 'none'}\n")
    for case, buckets in answer["findings"].items():
        sys.stdout.write(f"  {case:68} {', '.join(sorted({bucket.split('/')[0] for bucket in buckets})) or 'silent'}\n")


if __name__ == "__main__":
    sys.exit(main())
