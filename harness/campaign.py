"""A campaign over several machines: time-boxed shards as Ray tasks, whose cases and findings come to one driver.

A shard draws, runs and shrinks cases in a loop (``run_shard``) and says now and then what it has done. The driver
(``Driver``) keeps that as the records of a run, so that summary, report and working corpus are those of ``pytest
fuzz/``. A worker that is lost costs what it had not yet said: its shard goes on elsewhere for the time that is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness.bucket import Bucket
from harness.case import Case, Data, canonical_json
from harness.isolation import Found, IsolatedRunner, ReportedFinding, ReportedVerdict, Settings
from harness.judge import IsolatedJudge, ReportedJudgement
from harness.recorder import Recorder
from harness.search import Search
from harness.working_corpus import WorkingCorpus

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EXAMPLES_PER_SEARCH = 25
"""After so many cases a shard says what it has done, and goes on with another strategy."""
SHRINK_SECONDS = 120.0

Strategies = Mapping[str, "SearchStrategy[Case]"]


class Plan(Data, frozen=True, kw_only=True):
    """What one shard is to do."""

    shard: int
    seed: int
    seconds: float
    settings: Settings
    first_search: int = 0
    """Above zero where a shard goes on that lost its worker: it does not draw the same cases again."""


class Done(Data, frozen=True, kw_only=True):
    """One case that ran."""

    test: str
    case: Case
    findings: tuple[Found, ...]
    """Those that no known issue explains."""
    known_issue: str | None
    refusal: str | None
    te_linears: int
    seconds: dict[str, float]


class Progress(Data, frozen=True, kw_only=True):
    """What a shard says of the cases since it last said something."""

    shard: int
    process: int
    gpu: str | None
    search: int
    done: tuple[Done, ...]


def run_shard(plan: Plan, strategies: Strategies) -> Iterator[Progress]:
    """Fuzz until the time is over; each bucket is shrunk once, and counted when it is met again."""
    started = time.monotonic()
    names = list(strategies)
    done: list[Done] = []
    found: set[Bucket] = set()
    number = plan.first_search

    def progress() -> Progress:
        said = tuple(done)
        done.clear()
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        return Progress(shard=plan.shard, process=os.getpid(), gpu=gpu, search=number, done=said)

    with IsolatedRunner(plan.settings) as runner:
        judge = IsolatedJudge.of(runner, confirms=True)
        yield progress()
        while (left := plan.seconds - (time.monotonic() - started)) > 0:
            test = names[(plan.shard + number) % len(names)]

            def judge_new(case: Case, test: str = test) -> ReportedJudgement:
                judgement = judge.judge_first(case)
                done.append(_done(test, judgement))
                new = tuple(finding for finding in judgement.unexplained if finding.bucket not in found)
                return ReportedJudgement(judgement.verdict, judgement.explained, new)

            search = Search(strategies[test], EXAMPLES_PER_SEARCH, left, SHRINK_SECONDS, judge=judge_new)
            # Hypothesis takes any integer: streams of equal numbers in other shards or campaigns are others.
            search.run((plan.seed * 1_000_003 + plan.shard) * 1_000_003 + number)
            if search.finding is not None:
                found.add(search.finding.bucket)
            number += 1
            yield progress()


def _done(test: str, judgement: ReportedJudgement) -> Done:
    verdict = judgement.verdict
    return Done(
        test=test,
        case=verdict.case,
        findings=tuple(
            Found(kind=type(finding).__name__, bucket=finding.bucket, message=finding.message, place=finding.place)
            for finding in judgement.unexplained
        ),
        known_issue=judgement.explained[0][1].id if judgement.explained and not judgement.unexplained else None,
        refusal=verdict.refusal,
        te_linears=verdict.te_linears,
        seconds=verdict.seconds,
    )


class Driver:
    """Keeps what the shards say in the directory of a run and in the working corpus."""

    def __init__(self, directory: Path, corpus: Path | None) -> None:
        self.directory = directory
        self._smallest: dict[Bucket, int] = {}
        self.cases = 0
        self._corpus = WorkingCorpus(corpus) if corpus is not None else None
        self._recorders: dict[int, Recorder] = {}

    def take(self, progress: Progress) -> list[Found]:
        """Keep what a shard has done; the findings whose bucket is new to the campaign."""
        recorder = self._recorders.get(progress.shard)
        if recorder is None:
            recorder = self._recorders[progress.shard] = Recorder(self.directory, f"shard{progress.shard}")
        new: list[Found] = []
        for done in progress.done:
            self.cases += 1
            verdict = ReportedVerdict(
                done.case,
                tuple(ReportedFinding(done.case, found.bucket, found.message) for found in done.findings),
                done.refusal,
                done.te_linears,
                done.seconds,
                "",
            )
            if done.findings:
                first = done.findings[0]
                if first.bucket not in self._smallest:
                    new.append(first)
                size = len(canonical_json(done.case))
                if size <= self._smallest.get(first.bucket, size):
                    self._smallest[first.bucket] = size
                    recorder.failure_path(verdict)
            if self._corpus is not None:
                self._corpus.add(done.case, done.test, str(done.findings[0].bucket) if done.findings else None)
            recorder.after(done.test, verdict, done.known_issue)
        return new

    @property
    def found(self) -> int:
        """How many buckets have findings."""
        return len(self._smallest)

    def close(self) -> None:
        """Flush what is left."""
        for recorder in self._recorders.values():
            recorder.close()


class Shard:
    """A shard as the driver sees it, over all workers that it had."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._started = time.monotonic()
        self._searches = plan.first_search

    def take(self, progress: Progress) -> None:
        """Note how far it is."""
        self._searches = progress.search

    def rest(self) -> Plan | None:
        """What is left to do after the worker was lost; None where the time is over."""
        left = self.plan.seconds - (time.monotonic() - self._started)
        # The search that was cut off is not drawn again: it may be what ended the worker.
        changes = {"seconds": left, "first_search": self._searches + 1}
        return msgspec.structs.replace(self.plan, **changes) if left > 0 else None


class Cluster:
    """Ray, with one shard for each GPU, or for each CPU where the shards need none."""

    def __init__(self, address: str | None, device: str, task: Callable[[bytes], Iterator[bytes]]) -> None:
        import ray

        self._ray = ray
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        resources = ray.cluster_resources()
        self._on_gpus = device != "cpu" and resources.get("GPU", 0) >= 1
        self.slots = int(resources.get("GPU" if self._on_gpus else "CPU", 1))
        self._task = ray.remote(task).options(
            num_returns="streaming", num_cpus=1, num_gpus=1 if self._on_gpus else 0, max_retries=0
        )
        self._running: dict[Any, Shard] = {}

    def start(self, plan: Plan) -> None:
        """Run a shard when there is room for it."""
        self._running[self._task.remote(msgspec.json.encode(plan))] = Shard(plan)

    def run(self, take: Callable[[Progress], None], say: Callable[[str], None]) -> None:
        """Hand over what the shards say, until all have come to their end."""
        from ray.exceptions import RayError, RayTaskError

        while self._running:
            ready, _ = self._ray.wait(list(self._running), num_returns=1)
            stream = ready[0]
            shard = self._running[stream]
            try:
                progress = msgspec.json.decode(self._ray.get(next(stream)), type=Progress)
            except StopIteration:
                del self._running[stream]
                continue
            except RayTaskError:
                raise  # an error of ours, which would come again
            except RayError as error:
                del self._running[stream]
                rest = shard.rest()
                goes_on = "its time is over" if rest is None else "it goes on in another"
                say(f"shard {shard.plan.shard}: LOST ITS WORKER ({type(error).__name__}), {goes_on}")
                if rest is not None:
                    self.start(rest)
                continue
            shard.take(progress)
            take(progress)

    def close(self) -> None:
        """End all shards that still run."""
        self._ray.shutdown()
