"""``pytest fuzz/`` as a user runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.case import load_case
from harness.profiles import PROFILES, Profile
from harness.pytest_plugin import FuzzSession
from harness.recorder import CaseRecord, in_flight, read_records, run_info

ROOT = Path(__file__).parent.parent
SHARDS = "test_fuser and (0 or 1)"
CASES_PER_SHARD = 4


@dataclass(frozen=True)
class Fuzzed:
    """A finished run."""

    code: int
    output: str
    directory: Path | None
    records: tuple[CaseRecord, ...]


def fuzz(directory: Path, *options: str) -> Fuzzed:
    """Run the suite with an example database of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "fuzz/", "--tefuzz-profile", "ci-short", *options],
        cwd=ROOT,
        env=environment
        | {
            "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis"),
            "TEFUZZ_CORPUS": str(directory / "corpus"),
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    named = re.search(r"records in (\S+)", output)
    if named is None or not (ROOT / named[1]).exists():
        return Fuzzed(done.returncode, output, None, ())
    kept = directory / "records"
    shutil.move(ROOT / named[1], kept)
    return Fuzzed(done.returncode, output, kept, tuple(read_records(kept)))


def ids(run: Fuzzed) -> list[str]:
    return sorted(record.case_id for record in run.records)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Fuzzed:
    return fuzz(tmp_path_factory.mktemp("plain"), "-n", "0", "-k", SHARDS, "--hypothesis-seed", "11")


def test_header_and_summary(plain: Fuzzed) -> None:
    assert plain.code == 0, plain.output
    lines = plain.output.splitlines()
    header = [line for line in lines if line.startswith("tefuzz: ")]
    assert len(header) == 2
    for part in ("transformer_engine 2.", "lightning-thunder 0.2", "torch 2.", "device cpu", "EMULATION"):
        assert part in header[0] or "device cuda" in header[0]
    for part in ("caching, remat, fuser", "profile ci-short", "seed 11", "records in .tefuzz/runs/"):
        assert part in header[1]
    assert len(plain.records) == 2 * CASES_PER_SHARD
    assert all(record.test == "fuser" and record.bucket is None for record in plain.records if not record.known_issue)
    distinct = len(set(ids(plain)))
    assert distinct > CASES_PER_SHARD, "shards draw from streams of their own"
    assert any(line.startswith(f"{len(plain.records)} cases ({distinct} distinct) in ") for line in lines)
    for start in ("layers: ", "recipes: ", "executors: ", "Thunder's TE executors ran ", "time: ", "slowest case: "):
        assert any(line.startswith(start) for line in lines), start
    assert plain.directory is not None
    assert in_flight(plain.directory) == []


def test_two_workers_run_the_same_cases(plain: Fuzzed, tmp_path: Path) -> None:
    """The seed decides the cases, not who runs them."""
    run = fuzz(tmp_path, "-n", "2", "-k", SHARDS, "--hypothesis-seed", "11")
    assert run.code == 0, run.output
    assert ids(run) == ids(plain)
    assert "seed 11" in run.output
    assert run.output.count("tefuzz: fixes present") == 1, "workers print no header"
    assert f"{len(plain.records)} cases (" in run.output
    assert run.directory is not None
    assert {path.name for path in run.directory.glob("*.jsonl")} == {"gw0.jsonl", "gw1.jsonl"}


def test_a_reverted_fix_is_found_and_its_case_kept(plain: Fuzzed, tmp_path: Path) -> None:
    run = fuzz(tmp_path, "-n", "0", "-k", "test_fuser and 0", "--tefuzz-revert", "fuser", "--hypothesis-seed", "12",
               "--tefuzz-junit", str(tmp_path / "ci" / "buckets.xml"))  # fmt: skip
    assert run.code == 1, run.output
    assert "tefuzz: REVERTED: FUSER: THIS RUN HAS TO FAIL" in run.output
    assert "Expected op 0 to generate 0 param grads, but got" in run.output
    assert re.search(r"FOUND: \d+ x exception/backward/", run.output)
    assert run.directory is not None
    kept = sorted((run.directory / "failures").glob("*.json"))
    assert kept
    for path in kept:
        case = load_case(path)
        assert case.fuser is not None
        assert f"case:   {case.id}" in run.output, "the case that is kept is the one that is shown"
        assert f"replay: tefuzz run {ROOT}" in run.output
        assert f"failures/{path.name} --revert fuser" in run.output
        assert len(case.layers) == 1, "shrunk"
    assert ids(run) != ids(plain), "another seed draws other cases"
    assert "Traceback" not in run.output, "the essence is enough"
    assert "  where:  transformer_engine/pytorch/ops/fuser.py, line " in run.output
    entries = ElementTree.parse(tmp_path / "ci" / "buckets.xml").getroot()
    assert len(entries.findall("*/failure")) == len(kept), "a failure for each new bucket"
    info = run_info(run.directory)
    assert info is not None
    assert (info.profile, info.seed, info.reverts) == ("ci-short", 12, ("fuser",))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_starts(profile: str, tmp_path: Path) -> None:
    run = fuzz(tmp_path, "--collect-only", "-q", "--tefuzz-profile", profile)
    assert run.code == 0, run.output
    assert "INTERNALERROR" not in run.output


def test_the_default_profile_runs(tmp_path: Path) -> None:
    run = fuzz(tmp_path, "-n", "0", "-k", "test_fuser and 0", "--tefuzz-profile", "dev", "--hypothesis-seed", "3")
    assert run.code == 0, run.output
    assert len(run.records) >= PROFILES["dev"].examples_per_shard


def test_a_wrong_option_is_a_usage_error(tmp_path: Path) -> None:
    run = fuzz(tmp_path, "--tefuzz-profile", "fast")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "--tefuzz-profile 'fast' is unknown; choose one of dev, ci-short, ci" in run.output
    assert "Traceback" not in run.output
    assert run.directory is None


@pytest.mark.parametrize(
    ("reverts", "message"),
    [
        (["cache"], "--tefuzz-revert 'cache' is unknown; choose from caching, remat"),
        (["remat", "remat-names"], "the fix 'remat' can be undone once"),
        (["fuser", "fuser"], "the fix 'fuser' can be undone once"),
    ],
)
def test_wrong_reverts_are_usage_errors(reverts: list[str], message: str) -> None:
    session = object.__new__(FuzzSession)
    session.reverts = reverts
    with pytest.raises(pytest.UsageError, match=re.escape(message)):
        session._check_reverts()


@pytest.mark.parametrize(("given", "fixed", "expected"), [("7", 0, 7), (None, 3, 3), ("0", None, 0)])
def test_the_seed_is_the_users_or_the_profiles(given: str | None, fixed: int | None, expected: int) -> None:
    assert session_with_seed(given, fixed)._seed() == expected


def test_other_seeds_are_random_or_refused() -> None:
    assert len({session_with_seed(given, 0)._seed() for given in ("random", "random", "random")}) == 3
    assert len({session_with_seed(None, None)._seed() for _ in range(3)}) == 3
    for given in ("abc", "-1", "1.5"):
        with pytest.raises(pytest.UsageError, match="is no number"):
            session_with_seed(given, 0)._seed()


def session_with_seed(given: str | None, fixed: int | None) -> FuzzSession:
    session = object.__new__(FuzzSession)
    session.worker_input = None
    session.config = SimpleNamespace(getoption=lambda name, default: given)  # type: ignore[assignment]
    session.profile = Profile("a profile", examples_per_shard=1, fixed_seed=fixed)
    return session


def test_a_missing_device_is_a_usage_error_without_a_header_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    run = fuzz(tmp_path, "-q", "--tefuzz-device", "cuda")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "torch sees no CUDA device" in run.output
    assert "INTERNALERROR" not in run.output


def test_collecting_runs_nothing(tmp_path: Path) -> None:
    run = fuzz(tmp_path, "--collect-only", "-q")
    assert run.code == 0, run.output
    for test, shards in (
        ("test_te_v2", 6),
        ("test_te_v1", 4),
        ("test_torch", 3),
        ("test_fuser", 3),
        ("test_fused_module", 2),
        ("test_thunderfx", 2),
    ):
        assert len(set(re.findall(rf"::{test}\[\d+\]", run.output))) == shards
    assert run.records == ()
