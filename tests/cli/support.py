"""Running the command in this process, and verdicts that no case had to be run for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from click.testing import CliRunner, Result

from harness.case import Case, Linear
from harness.checks.base import Finding, Run
from harness.cli import main
from harness.device import Environment
from harness.judge import Judgement
from harness.run import Verdict

CASE: dict[str, Any] = {"schema": 1, "layers": [{"layer": "linear", "out_features": 64}]}
ENVIRONMENT = Environment(device="cpu", device_name="none", emulated=True, versions=(("torch", "2.13.0"),))


def tefuzz(*arguments: str | Path) -> Result:
    """What ``tefuzz ARGUMENTS`` does; exceptions that would escape the command fail the test."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def write(path: Path, content: Any) -> Path:
    """A file with ``content`` as JSON, or as it is if it is text."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


class Invented(Finding):
    """A finding of no check."""

    check = "invented"


def judgement(*, finds: bool = False) -> Judgement:
    """What a judge says of one linear that is clean or has one finding."""
    case = Case(layers=(Linear(out_features=64),))
    run = cast(Run, SimpleNamespace(case=case, subject=SimpleNamespace(subject="nobody")))
    found = (Invented(run, "one is two", stage="train", where="output"),) if finds else ()
    verdict = Verdict(case=case, findings=found, refusal=None, te_linears=1, seconds={"subject": 0.5}, run=run)
    return Judgement(verdict, (), found)
