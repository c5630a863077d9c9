"""Run Transformer Engine's and Thunder's own test files on the CPU emulation and say what passes.

    python tests/upstream/run_upstream.py DIR [--capability 10.0] [--sample 300] [FILE ...]

DIR is a checkout of Transformer Engine at the tag of the installed release (only tests/pytorch is read); the name
``thunder`` runs the tests that Thunder's wheel contains. Failures that come from what the emulation leaves out on
purpose are counted apart, with the reason. Exit status 1 when another failure is left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

TE_FILES = (
    "test_fusible_ops.py",
    "test_recipe.py",
    "test_float8tensor.py",
    "test_quantized_tensor.py",
    "test_float8_current_scaling_exact.py",
    "test_float8_blockwise_scaling_exact.py",
    "test_float8blockwisetensor.py",
    "test_numerics.py",
    "test_sanity.py",
    "test_custom_recipe.py",
    "test_multi_tensor.py",
    "test_fused_optimizer.py",
    "test_mxfp8_2d_quantize.py",
    "test_identity_quantizer.py",
    "nvfp4/test_nvfp4_quantize_exact.py",
    "nvfp4/test_nvfp4_rht_quantize_exact.py",
    "nvfp4/test_nvfp4_gemm_exact.py",
    "nvfp4/test_nvfp4_module_exact.py",
    "nvfp4/test_nvfp4_sr_quantize.py",
)
"""The files about what is emulated; those that a release lacks are passed over."""

THUNDER_FILES = ("test_transformer_engine_executor.py", "test_transformer_engine_v1_executor.py")

DESELECT = (
    "not attention and not dpa and not transformer_layer and not mha and not gpt and not bert and not T5 "
    "and not cuda_graph and not transformer_hidden and not kv_cache and not userbuffers"
)
"""Attention, whole transformer layers, graphs and communication are outside the emulation's scope."""


@dataclass
class FileResult:
    """What one test file gave."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, entry: dict[str, object]) -> None:
        """Count one line of the plugin's output."""
        if "collected" in entry:
            self.counts["collected"] += int(str(entry["collected"]))
        elif entry["outcome"] != "failed":
            self.counts[str(entry["outcome"])] += 1
        elif entry["reason"]:
            self.counts["out of scope"] += 1
            self.reasons[str(entry["reason"])] += 1
        else:
            self.counts["failed"] += 1
            self.failures.append(f"{entry['test']}: {entry['message']}")

    def line(self) -> str:
        """One row of the summary."""
        names = ("collected", "passed", "failed", "out of scope", "skipped", "xfailed", "xpassed")
        done = sum(self.counts[name] for name in names[1:])
        cells = [f"{self.counts[name]:7d}" for name in names] + [f"{max(0, self.counts['collected'] - done):7d}"]
        return f"{self.name:42s}" + "".join(cells)


def run_file(path: Path, directory: Path, options: argparse.Namespace) -> FileResult:
    """Run one file in its own process, under a time limit."""
    result = FileResult(path.name)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "results.jsonl"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "TEFUZZ_UPSTREAM_DIRECTORY": str(directory),
            "TEFUZZ_UPSTREAM_RESULTS": str(output),
            "TEFUZZ_UPSTREAM_SAMPLE": str(options.sample),
            "TEFUZZ_UPSTREAM_CAPABILITY": options.capability,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "NVTE_TEST_CHECKPOINT_ARTIFACT_PATH": scratch,
        }
        command = [sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q"]
        command += ["--import-mode=prepend", "-c", os.devnull, "--rootdir", str(directory), "-W", "ignore"]
        command += ["-k", DESELECT, str(path)]
        if options.directory == "thunder":
            command.append("--noconftest")  # it accounts GPU memory and needs pytest-benchmark
        try:
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=options.limit, check=False
            )
            if not output.exists():
                result.failures.append(f"{path.name} did not start: {finished.stdout[-500:]}{finished.stderr[-1500:]}")
                result.counts["failed"] += 1
        except subprocess.TimeoutExpired:
            result.reasons[f"not reached within {options.limit} s"] += 1
        if output.exists():
            for line in output.read_text(encoding="utf-8").splitlines():
                result.add(json.loads(line))
    return result


def selected_files(options: argparse.Namespace) -> tuple[Path, list[Path]]:
    """The directory of the tests and the files to run."""
    if options.directory == "thunder":
        spec = find_spec("thunder")
        if spec is None or spec.origin is None:
            raise SystemExit("Thunder is not installed in this environment")
        directory, names = Path(spec.origin).parent / "tests", THUNDER_FILES
    else:
        directory, names = Path(options.directory).resolve() / "tests" / "pytorch", TE_FILES
    if not directory.is_dir():
        raise SystemExit(f"{directory} does not exist: pass a Transformer Engine checkout, or the word thunder")
    chosen = [directory / name for name in options.files or names]
    return directory, [path for path in chosen if path.exists()]


def say(line: str) -> None:
    """One line of output, at once: a run takes long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the files, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="Transformer Engine checkout, or the word thunder")
    parser.add_argument("files", nargs="*", help="test files below tests/pytorch; default: all about the emulated part")
    parser.add_argument("--capability", default="9.0", help="compute capability to report (default 9.0)")
    parser.add_argument("--sample", type=int, default=0, help="run only this many tests of each file, chosen by seed 0")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for each file (default 1800)")
    options = parser.parse_intermixed_args()
    directory, files = selected_files(options)
    header = ("tests", "passed", "failed", "out", "skip", "xfail", "xpass", "left")
    say(f"{'file':42s}" + "".join(f"{title:>7s}" for title in header))
    results = []
    for path in files:
        results.append(run_file(path, directory, options))
        say(results[-1].line())
    total = sum((result.counts for result in results), Counter())
    in_scope = total["passed"] + total["failed"]
    say(f"in scope: {total['passed']} of {in_scope} passed ({100 * total['passed'] / max(in_scope, 1):.1f} %)")
    for reason, count in sum((result.reasons for result in results), Counter()).most_common():
        say(f"out of scope {count:5d}  {reason}")
    for result in results:
        for failure in result.failures:
            say(f"FAILED {failure}")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
