"""How often does tefuzz cry wolf? Cases over all pairs on the installed releases, and every finding that no known issue
explains. Each of them is a bug that nobody knew, or a false alarm of ours.

    python benchmarks/false_alarms.py --cases 5000

Cases come in chunks, each drawn from a seed of its own and run in a process of its own, so that a crash costs no more
than one. A chunk that is done is not run again: stop with Ctrl-C and start again to go on. Nothing is shrunk:
``tefuzz reduce`` does that with the cases that are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings

from harness.case import Case, pretty_json
from harness.device import activate
from harness.judge import Judge
from harness.recorder import write_atomically
from strategies import cases, fused_module_cases, fuser_cases

STRATEGIES = (
    cases("transformer_engine"),
    cases("transformer_engine_v1"),
    cases("torch"),
    fuser_cases(),
    fused_module_cases(),
)
"""By the number of the chunk: all pairs of subjects get the same number of cases."""
CHUNK = 40
CHUNK_TIMEOUT = 3600.0
"""Seconds. A case takes one or two; a busy machine may take ten times as long."""


class Unexplained(msgspec.Struct, frozen=True):
    """A finding that no known issue explains."""

    bucket: str
    message: str
    case: str
    """The file of its case."""


class Chunk(msgspec.Struct, frozen=True):
    """What one chunk gave."""

    cases: int = 0
    refused: int = 0
    """Cases that both sides refuse alike, or whose values overflow: only their traces were checked."""
    known: dict[str, int] = {}
    """Cases by the known issue that explains their first finding."""
    unexplained: tuple[Unexplained, ...] = ()
    seconds: float = 0.0


def run_chunk(number: int, directory: Path) -> Chunk:
    """Draw and judge the cases of one chunk in this process."""
    judge = Judge.of(activate())
    counts: Counter[str] = Counter()
    known: Counter[str] = Counter()
    unexplained: dict[str, Unexplained] = {}
    started = time.perf_counter()

    @seed(number)
    @settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(STRATEGIES[number % len(STRATEGIES)])
    def judge_one(case: Case) -> None:
        write_atomically(_in_flight(directory, number), pretty_json(case))
        judgement = judge.judge(case, thorough=False)
        counts["cases"] += 1
        counts["refused"] += judgement.verdict.refusal is not None
        for finding in judgement.unexplained[:1]:
            path = directory / f"{finding.bucket.digest}-{case.id}.json"
            write_atomically(path, pretty_json(case))
            bucket = str(finding.bucket)
            unexplained.setdefault(bucket, Unexplained(bucket, finding.message.split("\n", 1)[0], str(path)))
        if judgement.explained and not judgement.unexplained:
            known[judgement.explained[0][1].id] += 1

    judge_one()
    _in_flight(directory, number).unlink()
    return Chunk(
        counts["cases"], counts["refused"], dict(known), tuple(unexplained.values()), time.perf_counter() - started
    )


def _in_flight(directory: Path, number: int) -> Path:
    return directory / f"chunk-{number:04}.in-flight.json"


def result_of(number: int, directory: Path) -> Chunk:
    """The result of a chunk: the one that is there, or that of a new process."""
    path = directory / f"chunk-{number:04}.json"
    if not path.exists():
        command = [sys.executable, __file__, "--directory", str(directory), "--chunk", str(number)]
        try:
            status = str(subprocess.run(command, check=False, timeout=CHUNK_TIMEOUT).returncode)
        except subprocess.TimeoutExpired:
            status = f"more than {CHUNK_TIMEOUT:g} s"
        if not path.exists():
            lost = Unexplained("process", f"the process of a chunk ended: {status}", str(_in_flight(directory, number)))
            write_atomically(path, msgspec.json.encode(Chunk(unexplained=(lost,))).decode())
    return msgspec.json.decode(path.read_bytes(), type=Chunk)


def report(chunks: Sequence[Chunk]) -> bool:
    """Print what all chunks gave; whether nothing is unexplained."""
    known: Counter[str] = Counter()
    unexplained: dict[str, list[Unexplained]] = {}
    for chunk in chunks:
        known.update(chunk.known)
        for finding in chunk.unexplained:
            unexplained.setdefault(finding.bucket, []).append(finding)
    total, refused = sum(chunk.cases for chunk in chunks), sum(chunk.refused for chunk in chunks)
    seconds = sum(chunk.seconds for chunk in chunks)
    print(f"{total} cases in {seconds:.0f} s; {refused} refused; {sum(known.values())} with a known issue:")
    for issue, count in known.most_common():
        print(f"  {count:5}  {issue}")
    print(f"{len(unexplained)} buckets that no known issue explains")
    for bucket, findings in unexplained.items():
        print(f"  {bucket}: in {len(findings)} chunks; {findings[0].message}\n    {findings[0].case}")
    return not unexplained


def main(arguments: Sequence[str]) -> int:
    """Run what is missing and report; 1 when something is unexplained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="how many cases (5000), over all pairs")
    parser.add_argument("--directory", type=Path, help="where results are kept (.tefuzz/false-alarms/VERSIONS)")
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    directory = options.directory or Path(".tefuzz", "false-alarms", _versions())
    directory.mkdir(parents=True, exist_ok=True)
    if options.chunk is not None:
        chunk = run_chunk(options.chunk, directory)
        write_atomically(directory / f"chunk-{options.chunk:04}.json", msgspec.json.encode(chunk).decode())
        return 0
    chunks: list[Chunk] = []
    for number in range(-(-options.cases // CHUNK)):
        chunks.append(result_of(number, directory))
        found = sum(len(chunk.unexplained) for chunk in chunks)
        print(f"{sum(chunk.cases for chunk in chunks)} of {options.cases} cases, {found} unexplained", flush=True)
    return 0 if report(chunks) else 1


def _versions() -> str:
    return "-".join(f"{name}-{version}" for name, version in activate().versions)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted: start again to go on")
