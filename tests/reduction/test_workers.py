"""A case that takes its process with it, or hangs, has an outcome, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.case import Case, Dropout, LayerNorm, Linear, RMSNorm, canonical_json, load_case
from harness.reduction import workers as module
from harness.reduction.workers import Found, Job, Outcome, Workers
from tests.cli.support import CASE, tefuzz, write
from tests.reduction.serving import FOUND, serve


def test_crashes_and_hangs_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the processes import what they serve
    linear = Case(layers=(Linear(out_features=64),))
    workers = Workers(2, serve)
    try:
        workers.submit(Job(linear, False))
        assert workers.wait() == [(Job(linear, False), Outcome((FOUND,)))], "there is time to start"
        monkeypatch.setattr(module, "HANG_SECONDS", 1.0)
        for layer, bucket in (
            (LayerNorm(), "process/crash/SIGSEGV"),
            (Dropout(), "process/crash/exit status 7"),
            (RMSNorm(), "process/hang/no verdict within 1 s"),
        ):
            job = Job(Case(layers=(layer,)), False)
            workers.submit(job)
            assert workers.wait() == [(job, Outcome((Found(bucket, None),)))]
        monkeypatch.setattr(module, "HANG_SECONDS", 300.0)
        workers.submit(Job(linear, False))
        workers.submit(Job(linear, True))
        assert len(workers.wait() + (workers.wait() if workers.jobs else [])) == 2, "both places have a process"
    finally:
        workers.close()


def test_a_case_is_reduced_by_processes(tmp_path: Path) -> None:
    plain = {"layer": "activation"}
    layers = [plain, {"layer": "layer_norm", "eps": 1e-6}, plain, {"layer": "linear", "out_features": 64}]
    large = {"schema": 1, "jit": None, "fuser": {}, "layers": layers, "steps": [{"mode": "eval"}, {}], "seed": 5}
    path = write(tmp_path / "large.json", large)
    done = tefuzz("reduce", path, "--revert", "fuser", "-n", "2")
    assert done.exit_code == 0, done.output
    assert "keeps exception/backward/" in done.stdout
    assert "4 layers and 2 steps became 1 and 1" in done.stdout
    small = load_case(tmp_path / "large.reduced.json")
    assert isinstance(small.layers[0], Linear | LayerNorm)
    assert canonical_json(small).count(b":") < 8, "all else is at its default"
    assert {path.name for path in tmp_path.iterdir()} == {"large.json", "large.reduced.json"}


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", CASE)
    result = tefuzz("reduce", path, "--output", path)
    assert result.exit_code == 2
    assert "is the input: name another file" in result.stderr


@pytest.mark.parametrize("content", ["", '{"version": 99}'])
def test_a_state_that_is_of_no_use(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(_count: int, _serve: object) -> Workers:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.commands.reduce.Workers", workers)
    write(tmp_path / "case.reduced.json.state", content)
    result = tefuzz("reduce", write(tmp_path / "case.json", CASE))
    assert "begins anew: " in result.stdout
    assert result.exit_code == 130
