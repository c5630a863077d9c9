"""The folder of a bucket: the program shows the bug in a process of its own, text and page say what is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.device import activate

activate()

from harness.case import (  # noqa: E402
    Activation,
    Case,
    Checkpoint,
    Fuser,
    GatedActivation,
    Input,
    Jit,
    LayerNorm,
    Linear,
    Step,
    load_case,
)
from harness.checks.base import Run  # noqa: E402
from harness.checks.outputs import OutputDiffers  # noqa: E402
from harness.compare import Exact  # noqa: E402
from harness.report.folder import MAX_BYTES, Written, subjects, write_report  # noqa: E402
from harness.report.pieces import left_out  # noqa: E402
from harness.report.program import program_source  # noqa: E402
from harness.run import Verdict  # noqa: E402
from harness.subjects.base import Observation  # noqa: E402
from tests.report.support import judged, parsed  # noqa: E402

NAMES = (
    "caching",
    "fuser",
    "remat",
    "new-recipe-each-step",
    "sigmoid-gradient-nan",
    "v1-grad-entry-backward-scales",
)
REVERTS = ("caching", "fuser", "remat")
LINES = 66
"""Lines of a program that are not blank. Those that compare FP8 numbers with eager TE hold the eager side as well."""
LINES_WITH_EAGER_TE = 85


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    directory = tmp_path_factory.mktemp("reports")
    reports: dict[str, Written] = {}

    def report(name: str) -> Written:
        if name not in reports:
            judgement, reverts = judged(name)
            (subject,) = subjects([judgement])
            reports[name] = write_report(directory / name, subject, activate(), reverts)
        return reports[name]

    return report


@pytest.mark.parametrize("name", NAMES)
def test_report(name: str, written: Callable[[str], Written]) -> None:
    report = written(name)
    assert report.trial.complaint is None, report.trial.output
    assert report.trial.status == 1
    assert "expected: " in report.trial.output
    assert "seen: " in report.trial.output or "seen:\n" in report.trial.output
    assert report.folder.name == report.finding.bucket.digest
    assert load_case(report.folder / "case.json") == report.finding.case

    program = (report.folder / "repro.py").read_text()
    limit = LINES_WITH_EAGER_TE if "def te_linear" in program else LINES
    assert len([line for line in program.splitlines() if line.strip()]) <= limit
    compile(program, "repro.py", "exec")

    markdown = (report.folder / "report.md").read_text()
    assert "does not show" not in markdown.splitlines()[0]
    assert "**Expected:**" in markdown
    assert "**Seen:**" in markdown
    for package, version in activate().versions:
        assert f"{package} {version}" in markdown
    assert f"--expect-bucket {report.finding.bucket.digest}" in markdown
    assert program.splitlines()[0] in markdown

    page = report.folder / "report.html"
    assert page.stat().st_size < MAX_BYTES
    root = parsed(page)
    assert not list(root.iter("script"))
    assert len([e for e in root.iter() if e.tag.endswith("svg")]) >= 1
    assert "http://" not in page.read_text().replace("http://www.w3.org/2000/svg", ""), (
        "nothing is loaded from elsewhere"
    )


def test_without_the_revert_the_programs_see_nothing(written: Callable[[str], Written], tmp_path: Path) -> None:
    def status(name: str) -> int:
        program = (written(name).folder / "repro.py").read_text()
        (line,) = [line for line in program.splitlines() if line.startswith("revert_until_exit(")]
        return _status(tmp_path / f"{name}.py", program.replace(f"{line}\n", ""))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(status, REVERTS)) == [0, 0, 0]


CLEAN_LAYERS = (
    LayerNorm(),
    Activation(function="quick_gelu"),
    Checkpoint(body=(Linear(out_features=64), Activation(function="gelu"))),
    GatedActivation(function="swiglu"),
    Linear(out_features=20, frozen=("bias",)),
)


HABITS = (
    Step(optimizer="sgd"),
    Step(gradients="accumulated", backward="after_next_forward"),
    Step(mode="no_grad"),
    Step(optimizer="adamw"),
)
PIPELINE = (LayerNorm(), Linear(out_features=64), Activation(), Linear(out_features=32))
CLEAN = {
    "v2": (CLEAN_LAYERS, {"jit": Jit()}, "strided", "expanded"),
    "torch": (CLEAN_LAYERS, {"jit": Jit(executor="torch", entry="function")}, "transposed", "transposed"),
    "fuser": (PIPELINE, {"jit": None, "fuser": Fuser()}, "transposed", "strided"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_comparison_sees_nothing_where_nothing_is(name: str, tmp_path: Path) -> None:
    # Norms and activations round differently in eager torch; the eager side draws random numbers of its own.
    layers, subject, layout, gradient_layout = CLEAN[name]
    steps = HABITS if name != "torch" else (*HABITS[:3], Step(backward="twice", gradients="zeroed"))
    data: Any = {"dtype": "bfloat16", "distribution": "outliers", "layout": layout, "gradient_layout": gradient_layout}
    case = Case(layers=layers, steps=steps, input=Input(**data), **subject)
    assert left_out(case) == []
    empty = Run(case, Observation("subject"), Observation("reference"), Exact())
    finding = OutputDiffers(empty, "invented", stage="train", where="output")
    verdict = Verdict(case, (finding,), None, 0, {}, empty)
    program = program_source(verdict, finding, dict(activate().versions))
    assert _status(tmp_path / "repro.py", program) == 0


def _status(path: Path, program: str) -> int:
    path.write_text(program)
    done = subprocess.run([sys.executable, path], cwd=path.parent, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "expected: " in done.stdout
    return done.returncode


def test_the_guilty_layers_are_marked(written: Callable[[str], Written]) -> None:
    page = (written("caching").folder / "report.html").read_text()
    assert page.count("◀ seen here") == 2, "both linears share a state"
    assert written("caching").finding.evidence.layers == ("0", "1")
    assert written("remat").finding.evidence.layers == ("0",)


def test_duplicated_names_are_marked_in_the_traces(written: Callable[[str], Written]) -> None:
    caching, remat = written("caching"), written("remat")
    (symbol,) = caching.finding.evidence.names
    assert (caching.folder / "report.html").read_text().count(f"<mark>{symbol}</mark>") >= 2
    (name,) = remat.finding.evidence.names
    page = (remat.folder / "report.html").read_text()
    assert page.count(f"<mark>{name}</mark>") >= 2
    assert "forward trace (split)" in page
    assert "backward trace (split)" in page


def test_numbers_are_plotted(written: Callable[[str], Written]) -> None:
    page = (written("new-recipe-each-step").folder / "report.html").read_text()
    assert "error of every output and gradient in ulp" in page
    assert "linear 0, input: scale and amax over the steps" in page
    nan = (written("sigmoid-gradient-nan").folder / "report.html").read_text()
    assert "∞ / NaN" in nan
