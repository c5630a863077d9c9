"""Judges the cases of the release tests with what is installed, and prints the answer as JSON on its last line.

Run by ``run_releases.py`` in one environment for each release. Imports the harness from the checkout.
"""

from __future__ import annotations

import json
import sys
import warnings

from harness.case import Activation, AnyLayer, Case, Checkpoint, Executor, Input, Jit, Linear, Step
from harness.device import activate
from harness.fixes import missing_fixes

EXECUTORS: tuple[Executor, ...] = ("torch", "transformer_engine_v1", "transformer_engine")
LINEAR = Linear(out_features=64)
RELU = Activation()
MODELS: dict[str, tuple[AnyLayer, ...]] = {
    "linear-relu-linear in a checkpoint": (Checkpoint(body=(LINEAR, RELU, LINEAR)),),
    "squared relu in a checkpoint, linear": (Checkpoint(body=(Activation(function="squared_relu"),)), LINEAR),
    "linear-relu-linear": (LINEAR, RELU, LINEAR),
    "linear in a checkpoint": (Checkpoint(body=(LINEAR,)),),
}


def main() -> None:
    environment = activate()
    answer = {
        "versions": dict(environment.versions),
        "missing": [fix.name for fix in missing_fixes()],
        "findings": {f"{model} | {executor}": _findings(model, executor) for model in MODELS for executor in EXECUTORS},
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _findings(model: str, executor: Executor) -> list[str]:
    from harness.run import run_case

    case = Case(
        layers=MODELS[model], input=Input(requires_grad=True), steps=(Step(), Step()), jit=Jit(executor=executor)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Thunder's and TE's own
        return [str(finding.bucket) for finding in run_case(case).findings]


if __name__ == "__main__":
    main()
