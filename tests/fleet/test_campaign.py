"""A campaign: what shards say, what the driver keeps, and a local Ray of two processes one of which is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.bucket import Bucket
from harness.campaign import Done, Driver, Plan, Progress, Shard
from harness.case import Case, Linear, load_case, replace
from harness.isolation import Found, Settings
from harness.recorder import read_records
from harness.working_corpus import read_corpus

CASE = Case(layers=(Linear(out_features=64),))
LARGE = replace(CASE, layers=(Linear(out_features=64), Linear(out_features=64)))
BUCKET = Bucket("output", "train", "output", "thunder with TE v2", "DelayedScaling")
PLAN = Plan(shard=1, seed=0, seconds=100.0, settings=Settings())


def done(case: Case, *buckets: Bucket) -> Done:
    findings = tuple(Found(kind="OutputDiffers", bucket=bucket, message="differs") for bucket in buckets)
    return Done(
        test="te_v2",
        case=case,
        findings=findings,
        known_issue=None,
        refusal=None,
        te_linears=1,
        seconds={"subject": 1.0},
    )


def said(shard: int, *cases: Done, search: int = 0) -> Progress:
    return Progress(shard=shard, process=1, gpu=None, search=search, done=cases)


def test_the_driver_keeps_records_smallest_failures_and_the_corpus(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "run", tmp_path / "corpus")
    other = Bucket("gradient", "train", "Linear.weight", "thunder with TE v2", "none")
    assert [found.bucket for found in driver.take(said(0, done(LARGE, BUCKET), done(CASE, BUCKET)))] == [BUCKET]
    assert driver.take(said(1, done(LARGE, BUCKET), done(replace(CASE, seed=1)))) == [], "another shard's is not new"
    assert [found.bucket for found in driver.take(said(1, done(LARGE, other)))] == [other]
    driver.close()
    assert (driver.cases, driver.found) == (5, 2)
    assert load_case(tmp_path / "run" / "failures" / f"{BUCKET.digest}.json") == CASE, "the smaller one"
    assert {path.name for path in (tmp_path / "run").glob("*.jsonl")} == {"shard0.jsonl", "shard1.jsonl"}
    assert len(list(read_records(tmp_path / "run"))) == 5
    kept = {entry.bucket for _, entry in read_corpus(tmp_path / "corpus")[0]}
    assert {str(BUCKET), str(other)} <= kept


def test_a_shard_that_lost_its_worker_goes_on_with_what_is_left() -> None:
    shard = Shard(PLAN)
    shard.take(said(1, search=4))
    rest = shard.rest()
    assert rest is not None
    assert (rest.shard, rest.seed, rest.first_search) == (1, 0, 5)
    assert 0 < rest.seconds < 100.0
    assert Shard(Plan(shard=1, seed=0, seconds=0.0, settings=Settings())).rest() is None


@pytest.mark.skipif("TEFUZZ_TEST_RAY" not in os.environ, reason="a local Ray takes minutes: make test-fleet")
def test_a_local_ray_survives_a_lost_worker(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[fleet]'")
    log = tmp_path / "log"
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "campaign",
        "--minutes",
        "1.5",
        "--shards",
        "2",
        "--seed",
        "3",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--corpus", str(tmp_path / "corpus")], cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 400
        while not (lines := re.findall(r"shard 0 \(process (\d+)\): ", log.read_text())):
            assert time.monotonic() < deadline, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        os.kill(int(lines[-1]), signal.SIGKILL)
        assert process.wait(400) in (0, 1), log.read_text()
    finally:
        process.kill()
    text = log.read_text()
    assert "shard 0: LOST ITS WORKER" in text
    assert len(set(re.findall(r"shard 0 \(process (\d+)\)", text))) == 2, "it went on in another process"
    assert "shard 1 (process" in text
    counted = re.search(r"^(\d+) cases \(", text, re.MULTILINE)
    assert counted is not None
    (directory,) = (tmp_path / ".tefuzz" / "runs").iterdir()
    assert int(counted[1]) == len(list(read_records(directory)))
    assert read_corpus(tmp_path / "corpus")[0], "what the shards found is in one corpus"
