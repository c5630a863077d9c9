"""A case that takes its process with it, or hangs, has an outcome, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bucket import Bucket
from harness.case import Case, LayerNorm, Linear, RMSNorm, canonical_json, load_case
from harness.device import DeviceError
from harness.isolation import CaseCrashed, IsolatedRunner, IsolationError, Ready, ReportedVerdict, Settings
from harness.reduction import workers as module
from harness.reduction.workers import Found, Job, Outcome, Workers
from tests.cli.support import CASE, ENVIRONMENT, tefuzz, write


class Runner(IsolatedRunner):
    """Runs no case: LayerNorm breaks tefuzz, RMSNorm finds that the process cannot run cases."""

    def ready(self) -> Ready:
        return Ready(environment=ENVIRONMENT, missing_fixes=())

    def run(self, case: Case, *, thorough: bool = True, seconds: float | None = None) -> ReportedVerdict:
        if isinstance(case.layers[0], LayerNorm):
            raise IsolationError("our own bug")
        if isinstance(case.layers[0], RMSNorm):
            raise DeviceError("no CUDA")
        bucket = Bucket("crash", "run", "SIGSEGV", "thunder", "none")
        return ReportedVerdict(case, (CaseCrashed(case, bucket, "by SIGSEGV"),), None, 0, {}, "")


def test_whatever_happens_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IsolatedRunner", Runner)
    workers = Workers(2, Settings())
    expected = {
        Linear(out_features=64): Outcome(found=(Found(bucket="crash/run/SIGSEGV/thunder/none"),)),
        LayerNorm(): Outcome(error="our own bug"),
        RMSNorm(): Outcome(refusal="no CUDA"),
    }
    outcomes = {}
    for layer in expected:
        if not workers.idle:
            outcomes |= {job.case.layers[0]: outcome for job, outcome in workers.wait()}
        workers.submit(Job(case=Case(layers=(layer,)), thorough=False))
    while workers.jobs:
        outcomes |= {job.case.layers[0]: outcome for job, outcome in workers.wait()}
    assert outcomes == expected
    assert workers.idle == workers.count == 2
    workers.close()


def test_a_case_is_reduced_by_processes(tmp_path: Path) -> None:
    plain = {"layer": "activation"}
    layers = [plain, {"layer": "layer_norm", "eps": 1e-6}, plain, {"layer": "linear", "out_features": 64}]
    large = {"schema": 1, "jit": None, "fuser": {}, "layers": layers, "steps": [{"mode": "eval"}, {}], "seed": 5}
    path = write(tmp_path / "large.json", large)
    before = path.read_text()
    output = tmp_path / "new" / "small.json"
    done = tefuzz("reduce", path, "--revert", "fuser", "-n", "2", "--output", output)
    assert done.exit_code == 0, done.output
    assert "keeps exception/backward/" in done.stdout
    assert "4 layers and 2 steps became 1 and 1" in done.stdout
    small = load_case(output)
    assert isinstance(small.layers[0], Linear | LayerNorm)
    assert canonical_json(small).count(b":") < 8, "all else is at its default"
    assert [path.name for path in output.parent.iterdir()] == ["small.json"]
    assert path.read_text() == before


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", CASE)
    result = tefuzz("reduce", path, "--output", path)
    assert result.exit_code == 2
    assert "is the input: name another file" in result.stderr


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = tefuzz("reduce", write(tmp_path / "case.json", CASE), "--device", "cuda", "-n", "1")
    assert result.exit_code == 2, result.output
    assert "run with --device cpu" in result.stderr


@pytest.mark.parametrize("content", ["", '{"version": 99}'])
def test_a_state_that_is_of_no_use(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(_count: int, _settings: object) -> Workers:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.commands.reduce.Workers", workers)
    write(tmp_path / "case.reduced.json.state", content)
    result = tefuzz("reduce", write(tmp_path / "case.json", CASE))
    assert "begins anew: " in result.stdout
    assert result.exit_code == 130
