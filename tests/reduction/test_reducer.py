"""The same small case comes out, however many workers there are and wherever it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from harness.case import (
    Activation,
    Case,
    CaseError,
    Checkpoint,
    Input,
    LayerNorm,
    Linear,
    Precision,
    Residual,
    Step,
    load_case,
    walk,
)
from harness.reduction.reducer import Files, NothingToReduceError, Reduction, State, begin, load_state
from harness.reduction.workers import Found, Job, Outcome, Workers

BUCKET = "invented/joint/state/thunder with TE v2/DelayedScaling"
ROW = (LayerNorm(), Linear(out_features=96), Activation(function="gelu"), Linear(out_features=96, bias=False))
LARGE = Case(
    layers=(*ROW, *ROW, Residual(body=(*ROW, Checkpoint(body=ROW))), *ROW, Linear(out_features=128)),
    input=Input(batch=(2, 8, 16), features=96, dtype="bfloat16", distribution="outliers", requires_grad=True),
    precision=Precision(recipe_object="new_each_step"),
    steps=tuple(Step(mode=mode) for mode in ("train", "eval", "train", "no_grad", "train", "train", "inference")),
    seed=77,
)
SMALLEST = Case(layers=(Linear(out_features=64), Linear(out_features=64)), steps=(Step(mode="eval"), Step()))


def equal_linears_after_evaluation(case: Case) -> Outcome:
    """Two equal linears, and a training step after one in evaluation mode; one linear is a known issue."""
    linears = [layer.out_features for _, layer in walk(case.layers) if isinstance(layer, Linear)]
    modes = [step.mode for step in case.steps]
    evaluated = "eval" in modes and "train" in modes[modes.index("eval") :]
    if len(linears) > len(set(linears)) and evaluated:
        return Outcome(found=(Found(bucket=BUCKET),))
    return Outcome(found=(Found(bucket=BUCKET, issue="known"),)) if linears else Outcome()


class Inline:
    """Workers that run in this process; those that began last are done first."""

    def __init__(self, count: int, run: Callable[[Case], Outcome], limit: int = 10**6) -> None:
        self.count = count
        self.jobs: list[Job] = []
        self.executions = 0
        self._run = run
        self._limit = limit

    @property
    def idle(self) -> int:
        return self.count - len(self.jobs)

    def submit(self, job: Job) -> None:
        assert self.idle
        self.jobs.append(job)

    def wait(self) -> list[tuple[Job, Outcome]]:
        if self.executions >= self._limit:
            raise KeyboardInterrupt
        self.executions += 1
        job = self.jobs.pop()
        return [(job, self._run(job.case))]


def reduced(workers: Inline, files: Files, state: State | None = None) -> State:
    some = cast(Workers, workers)
    state = state or begin(some, LARGE, None, ())
    return Reduction(some, state, files, lambda _state: None).run()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_result_does_not_depend_on_the_workers(count: int, tmp_path: Path) -> None:
    files = Files(tmp_path / "small.json")
    final = reduced(Inline(count, equal_linears_after_evaluation), files)
    assert final.best == load_case(files.output) == SMALLEST
    assert final.executions < 150
    assert [final.history[0].layers, final.history[-1].layers] == [len(list(walk(LARGE.layers))), 2]
    assert not files.state.exists(), "it is of no use at the end"


def test_an_interrupted_reduction_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = reduced(Inline(2, equal_linears_after_evaluation), Files(tmp_path / "whole.json"))
    files, state, executions = Files(tmp_path / "parts.json"), None, 0
    for _ in range(100):
        workers = Inline(2, equal_linears_after_evaluation, limit=7)
        try:
            final = reduced(workers, files, state)
            break
        except KeyboardInterrupt:
            state = load_state(files.state)
            assert load_case(files.output) == state.best, "the smallest case is always on disk"
        finally:
            executions += workers.executions
    assert final.best == whole.best == SMALLEST
    assert final.history[-1].executions == whole.history[-1].executions
    assert executions < whole.executions * 1.5, "only what was running is run again"


def test_a_new_finding_does_not_become_a_known_one(tmp_path: Path) -> None:
    final = reduced(Inline(1, equal_linears_after_evaluation), Files(tmp_path / "small.json"))
    assert final.target.issue is None
    assert len(final.best.layers) == 2, "one linear shows the same bucket as a known issue"


def test_what_needs_whole_runs_gets_them() -> None:
    class Quick(Inline):
        def submit(self, job: Job) -> None:
            super().submit(job)
            self._run = lambda case: equal_linears_after_evaluation(case) if job.thorough else Outcome()

    assert begin(cast(Workers, Quick(1, lambda case: Outcome())), LARGE, None, ()).target.thorough
    assert not begin(cast(Workers, Inline(1, equal_linears_after_evaluation)), LARGE, None, ()).target.thorough
    known = Outcome(found=(Found(bucket=BUCKET, issue="known"),))
    assert not begin(cast(Workers, Inline(1, lambda _case: known)), LARGE, None, ()).target.thorough


@pytest.mark.parametrize(
    ("outcome", "bucket", "message"),
    [
        (Outcome(), None, "does not show a finding, but nothing. Name the fixes"),
        (Outcome(found=(Found(bucket=BUCKET),)), "0123456789", f"does not show bucket 0123456789, but {BUCKET} ["),
        (Outcome(refusal="no CUDA"), None, "no CUDA"),
    ],
)
def test_a_case_that_does_not_show_it(outcome: Outcome, bucket: str | None, message: str) -> None:
    with pytest.raises(NothingToReduceError) as error:
        begin(cast(Workers, Inline(1, lambda _case: outcome)), LARGE, bucket, ())
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "{}", '{"version": 99}'])
def test_a_broken_state_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.state").write_text(content)
    with pytest.raises(CaseError):
        load_state(tmp_path / "x.state")
