"""What the harness costs: overhead per case, start, scaling over workers, growth. Ratios, each from one run.

    python benchmarks/costs.py [overhead|start|scaling|growth ...] [--cases 40]

overhead  whole cases (drawn, run in the child process, judged, recorded) over the bare `thunder.jit` and eager calls
start     `pytest fuzz/` until its tests are collected, and until its first case is done, over the bare imports
scaling   cases per second of `pytest fuzz/ -n 2` over `-n 1`
growth    seconds per case against layers, width and steps; time and memory of the last tenth of a run over the first
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from harness.case import Activation, Case, Input, Linear, Step, replace
from harness.isolation import IsolatedRunner, Settings
from harness.judge import FirstFindings, IsolatedJudge
from harness.recorder import Recorder, read_records
from strategies import cases

ROOT = Path(__file__).parent.parent
GOALS = {"overhead": "at most 1.10", "start": "at most 1.0 s more", "scaling": "at least 1.8", "growth": "linear, flat"}


def main() -> None:
    """Print the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[[], *GOALS])
    parser.add_argument("--cases", type=int, default=40)
    options = parser.parse_args()
    measure: dict[str, Callable[[int], None]] = {
        "overhead": overhead,
        "start": start,
        "scaling": scaling,
        "growth": growth,
    }
    for name in options.what or GOALS:
        print(f"{name} (goal: {GOALS[name]})")
        measure[name](options.cases)


def drawn(count: int) -> tuple[list[Case], float]:
    """Cases of Thunder's TE executor, and the seconds that drawing one takes."""
    found: list[Case] = []

    @seed(0)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases("transformer_engine"))
    def draw(case: Case) -> None:
        found.append(case)

    started = time.perf_counter()
    draw()
    return found, (time.perf_counter() - started) / len(found)


def overhead(count: int) -> None:
    """Whole and bare runs of the same cases take turns, so that what else the machine does hits both."""
    from harness.device import activate

    chosen, drawing = drawn(count)
    activate()
    with tempfile.TemporaryDirectory() as directory, IsolatedRunner(Settings()) as runner:
        recorder = Recorder(Path(directory), "main")
        judge = FirstFindings(IsolatedJudge.of(runner).judge_first, recorder.before)
        whole = bare = 0.0
        counted = 0
        for index, case in enumerate(dict.fromkeys(chosen)):
            judged = seconds(lambda case=case: recorder.after("te_v2", judge.judge(case).verdict, None))
            called = seconds(lambda case=case: bare_calls(case))
            # The first one pays for what is made once, and a finding may end a case early.
            if index and not judge.judge(case).verdict.findings:
                whole += judged + drawing
                bare += called
                counted += 1
            elif not index:
                # As in the child: what lives as long as the process is not looked at again and again.
                gc.collect()
                gc.freeze()
        recorder.close()
    print(
        f"  {counted} cases, {whole:.1f} s over {bare:.1f} s: {whole / bare:.3f}; drawing {1e3 * drawing:.1f} ms a case"
    )


def bare_calls(case: Case) -> None:
    """Both sides of a case, observed by nobody."""
    from harness.run import PAIRS, pair_name, reset_global_state

    for side in PAIRS[pair_name(case)]:
        reset_global_state()
        side(case, "cpu").observe()


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def start(_count: int) -> None:
    """Against a process that imports the three packages and ends."""
    imports = "from harness.device import activate; activate(); import harness.run"
    bare = min(seconds(lambda: subprocess.run([sys.executable, "-c", imports], check=True)) for _ in range(3))
    collected = min(seconds(lambda: fuzz("--collect-only", "-q")) for _ in range(3))
    first = min(first_case() for _ in range(3))
    print(f"  imports {bare:.1f} s; collected after {collected:.1f} s; first case done after {first:.1f} s")
    print(f"  more than the imports: {collected - bare:+.1f} s and {first - bare:+.1f} s")


def fuzz(*options: str) -> Path | None:
    """Run the fuzz suite and return the directory of its records."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "fuzz/", "--hypothesis-seed", "0", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    named = re.search(r"records in (\S+)", done.stdout)
    return ROOT / named[1] if named else None


def first_case() -> float:
    """Seconds until the first case of the fuzz suite is done."""
    started = time.time()
    directory = fuzz("-n", "0", "-k", "test_fuser and 0", "--tefuzz-profile", "ci-short")
    assert directory is not None
    return min(record.finished for record in read_records(directory)) - started


def scaling(_count: int) -> None:
    """Cases per second between the first and the last case, so without the start."""
    rates = []
    for workers in (1, 2):
        directory = fuzz("-n", str(workers), "-k", "test_te_v2", "--tefuzz-profile", "ci-short")
        assert directory is not None
        finished = sorted(record.finished for record in read_records(directory))
        rates.append((len(finished) - 1) / (finished[-1] - finished[0]))
        print(f"  -n {workers}: {rates[-1]:.2f} cases/s")
    print(f"  ratio {rates[1] / rates[0]:.2f} on {len(os.sched_getaffinity(0))} cores")


def growth(count: int) -> None:
    """Each series changes one thing; then one case again and again."""
    with IsolatedRunner(Settings()) as runner:
        runner.run(model(1))
        for name, series in SERIES.items():
            cells = [f"{value}: {seconds(lambda case=case: runner.run(case)):.2f} s" for value, case in series]
            print(f"  {name:<8}" + ", ".join(cells))
        verdicts = [runner.run(case) for case in repeated(count)]
    spent = [sum(verdict.seconds.values()) for verdict in verdicts]
    tenth = max(1, count // 10)
    early, late = sum(spent[tenth : 2 * tenth]), sum(spent[-tenth:])
    grown = (verdicts[-1].memory - verdicts[tenth].memory) / 2**20
    print(
        f"  over {count} equal cases: time of the last tenth over the second {late / early:.2f}, memory {grown:+.1f} MB"
    )


def model(depth: int, width: int = 64, steps: int = 1) -> Case:
    """Linears with activations between them."""
    layers = [layer for _ in range(depth) for layer in (Linear(out_features=width), Activation())]
    return Case(layers=tuple(layers), input=Input(features=width), steps=(Step(),) * steps)


SERIES: dict[str, Sequence[tuple[int, Case]]] = {
    "depth": [(value, model(value)) for value in (1, 2, 4, 8)],
    "width": [(value, model(2, value)) for value in (64, 128, 256, 512)],
    "steps": [(value, model(2, 64, value)) for value in (1, 2, 4, 8)],
}


def repeated(count: int) -> Iterator[Case]:
    """The same small model with another seed each time."""
    return (replace(model(1), seed=number) for number in range(count))


if __name__ == "__main__":
    main()
