"""What programs are made of: hostile text, fields that are not carried over, distributions, and judging a run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.device import activate

activate()

from harness.case import (  # noqa: E402
    Case,
    Distribution,
    Dropout,
    ExtraOutput,
    Input,
    Jit,
    LayerNorm,
    Linear,
    ParameterNames,
    Precision,
    Step,
)
from harness.checks.base import Run  # noqa: E402
from harness.checks.exceptions import SubjectRaised  # noqa: E402
from harness.checks.outputs import OutputDiffers  # noqa: E402
from harness.compare import Exact  # noqa: E402
from harness.program import parameter_expressions  # noqa: E402
from harness.report import pieces  # noqa: E402
from harness.report.examinations import EXAMINATIONS, SPECIAL, examination  # noqa: E402
from harness.report.program import doubt, program_source  # noqa: E402
from harness.report.trial import run_program  # noqa: E402
from harness.run import Verdict, run_case  # noqa: E402
from harness.subjects.base import Observation  # noqa: E402
from tests.report.support import judged  # noqa: E402

HOSTILE = 'a """ b \\N{x} \\" <script>alert("x")</script> ``` | c"'


@pytest.mark.parametrize("name", ["fuser", "te-ops-parameters-hidden-from-start"])
def test_hostile_text_stays_text(name: str) -> None:
    judgement, reverts = judged(name)
    finding = judgement.verdict.findings[0]
    old = finding.message
    finding.message = HOSTILE
    try:
        program = program_source(judgement.verdict, finding, {"torch": "2"}, reverts)
    finally:
        finding.message = old
    assert HOSTILE in (ast.get_docstring(ast.parse(program), clean=False) or "")


def test_comparisons_of_random_numbers_prove_nothing() -> None:
    random = Case(layers=(Linear(out_features=64), Dropout()))
    for case, doubtful in ((random, True), (Case(layers=random.layers[:1]), False)):
        verdict = run_case(case)
        finding = OutputDiffers(verdict.run, "invented", stage="train", where="output")
        assert (doubt(verdict, finding) is not None) == doubtful
        raised = SubjectRaised(verdict.run, "invented", stage="forward", where="RuntimeError: x")
        assert doubt(verdict, raised) is None


@pytest.mark.parametrize("names", ["plain", "nested", "colliding", "like_proxies"])
def test_names_and_shared_parameters_are_those_of_the_case(names: ParameterNames) -> None:
    layers = (Linear(out_features=64), Linear(out_features=64, parameters="tied"), ExtraOutput(), LayerNorm())
    case = Case(layers=layers, jit=Jit(names=names, executor="torch"), precision=Precision(recipe=None))
    empty = Run(case, Observation("subject"), Observation("reference"), Exact())
    finding = OutputDiffers(empty, "invented", stage="train", where="output")
    program = program_source(Verdict(case, (finding,), None, 0, {}, empty), finding, {"torch": "2"})
    values: dict[str, Any] = {}
    exec(compile(program.partition("double =")[0], "repro.py", "exec"), values)
    model = values["model"]
    assert len(list(model.parameters())) == 4, "one weight and bias for both linears, two of the norm"
    assert {name for name, _ in model.named_parameters(remove_duplicate=False)} == set(
        parameter_expressions(case.layers, case.input.features, names).values()
    )
    assert len(model(values["torch"].randn(16, 64))) == 2


@pytest.mark.parametrize("distribution", get_args(Distribution))
def test_every_distribution_has_a_program_text(distribution: Distribution) -> None:
    case = Case(layers=(Linear(out_features=64),), input=Input(distribution=distribution))
    text = "\n".join([*pieces.input_function(case), f"x = {pieces.input_text(case, '16')}"])
    assert "generator" not in text
    ast.parse(text)


@pytest.mark.parametrize(("check", "stage"), [*((check, "forward") for check in EXAMINATIONS), *SPECIAL])
def test_every_examination_is_python(check: str, stage: str) -> None:
    found = examination(check, stage, "te_functional_linear_fwd", 2)
    assert found is not None
    assert not [word for word in ("<trace>", "<forward>", "<label>") if word in found.code]
    ast.parse("\n".join([*found.imports, found.functions, found.code]))
    assert "faults" in found.code


def test_fields_that_no_program_follows_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(layers=(Linear(out_features=64),), steps=(Step(mode="eval"),))
    assert pieces.left_out(case) == []
    monkeypatch.setitem(pieces.CARRIED_OVER, Step, {"batch"})
    assert pieces.left_out(case) == ["Step.mode"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("print('seen: nothing')", "status 0"),
        ("raise ZeroDivisionError('ours')", "an exception of its own (ZeroDivisionError: ours)"),
        ("import sys; sys.exit(7)", "status 7"),
        ("import sys; print('seen: ValueError: other'); sys.exit(1)", "raises another exception"),
        (
            "import sys; print('seen: RuntimeError: Expected op 7 to generate 0 param grads, but got 1'); sys.exit(1)",
            None,
        ),
    ],
)
def test_a_program_that_does_not_show_the_bug_is_found_out(tmp_path: Path, text: str, complaint: str | None) -> None:
    finding = judged("fuser")[0].verdict.findings[0]
    (tmp_path / "repro.py").write_text(text)
    trial = run_program(tmp_path / "repro.py", finding)
    assert (trial.complaint or "").find(complaint or "") >= 0
    assert (trial.complaint is None) == (complaint is None)
