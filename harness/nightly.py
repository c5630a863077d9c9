"""The nightly run: replay, fuzz for a set time, minimise, report, open what is new; all of it, whatever fails.

Two directories matter. The *state* goes from night to night: working corpus, database of Hypothesis, and which buckets
were opened. The *output* is for people: reports, records and what each step printed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.ci import BucketResult, read_result
from harness.exit_codes import ExitCode

ROOT = Path(__file__).parent.parent
"""The checkout: the nightly run needs ``fuzz/``."""
SEVERITY = (ExitCode.OWN_ERROR, ExitCode.FINDINGS, ExitCode.DRIFTED, ExitCode.BAD_INPUT)
"""Exit codes, the most severe first; all others but 0 count as errors of our own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a nightly run is asked to do."""

    state: Path
    output: Path
    seconds: float
    workers: str = "auto"
    device: str = "auto"
    max_new: int = 5
    open_command: tuple[str, ...] = ()
    """Called with the folder of a new bucket's report as last argument; status 0: it was opened."""
    pytest_options: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What to replay beside the working corpus; nothing: the corpus of the repository and all known issues."""

    @property
    def corpus(self) -> Path:
        """The working corpus."""
        return self.state / "corpus"

    @property
    def opened(self) -> Path:
        """An empty file for each bucket that was opened."""
        return self.state / "opened"


@dataclass
class Nightly:
    """One night."""

    plan: Plan
    say: Callable[[str], None]
    codes: dict[str, int] = field(default_factory=dict)
    """Exit code of each step."""

    def run(self) -> ExitCode:
        """All steps, and the most severe exit code."""
        plan = self.plan
        for directory in (plan.corpus, plan.opened, plan.output):
            directory.mkdir(parents=True, exist_ok=True)
        common = ["-n", plan.workers, "--device", plan.device]
        self._tefuzz("replay", "replay", *plan.kept, *common, "--records", str(plan.output / "replay.jsonl"))
        if any(plan.corpus.glob("*.json")):
            records = str(plan.output / "replay-corpus.jsonl")
            self._tefuzz("replay-corpus", "replay", str(plan.corpus), *common, "--records", records)
        run = self._fuzz()
        self._tefuzz("minimise", "corpus", "minimise", str(plan.corpus))
        if run is not None:
            self._report(run)
        for name, code in self.codes.items():
            self.say(f"nightly: {name}: {'ok' if code == 0 else f'exit code {code}'}")
        return worst(self.codes.values())

    def _fuzz(self) -> Path | None:
        """Fuzz, and return the directory of the run."""
        plan = self.plan
        command = [
            *("-m", "pytest", "fuzz/", "-n", plan.workers, "--tefuzz-profile", "nightly"),
            *("--tefuzz-time", str(plan.seconds), "--tefuzz-device", plan.device),
            *("--tefuzz-corpus", str(plan.corpus), "--tefuzz-junit", str(plan.output / "junit.xml")),
            *plan.pytest_options,
        ]
        # Its own directory of Hypothesis, so that the database goes from night to night.
        pid = self._step("fuzz", command, {"HYPOTHESIS_STORAGE_DIRECTORY": str(plan.state / "hypothesis")})
        if self.codes["fuzz"] in (ExitCode.BAD_INPUT, 5):
            self.codes["fuzz"] = ExitCode.OWN_ERROR  # pytest: interrupted, or no test was collected
        elif self.codes["fuzz"] == 4:
            self.codes["fuzz"] = ExitCode.BAD_INPUT  # pytest: wrong options
        # Other runs may be made in this checkout meanwhile: the one of this process is named after it.
        run = max((ROOT / ".tefuzz" / "runs").glob(f"*-{pid}"), default=None)
        if run is None:
            return None
        shutil.copytree(run, plan.output / "run", dirs_exist_ok=True)
        return run

    def _report(self, run: Path) -> None:
        """Reports of the buckets that were never opened, an index, and the new ones opened; at most ``max_new``."""
        plan, reports = self.plan, self.plan.output / "reports"
        unopened = [one for one in read_result(run).new if not (plan.opened / one.digest).exists()]
        chosen = unopened[: plan.max_new]
        for one in chosen:
            self._write_report(one, reports)
        self._tefuzz("index", "report", str(run), "--report-dir", str(reports))
        if len(unopened) > len(chosen):
            self.say(f"nightly: {len(unopened) - len(chosen)} more new buckets wait for the next night")
        for one in chosen:
            self._open(one, reports / one.digest)

    def _write_report(self, one: BucketResult, reports: Path) -> None:
        """The report, by a process of its own: the case may crash it. Then at least what the run said is there."""
        name, folder = f"report-{one.digest}", reports / one.digest
        if one.case is not None:
            self._tefuzz(name, "run", str(one.case), "--device", self.plan.device, "--report-dir", str(reports))
            if self.codes[name] == ExitCode.FINDINGS or not folder.exists():
                del self.codes[name]  # the step that found it has said so
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "report.md").write_text(f"# {one.bucket}\n\nThere is no full report.\n\n```\n{one.text}\n```\n")
            if one.case is not None:
                shutil.copy(one.case, folder / "case.json")

    def _open(self, one: BucketResult, folder: Path) -> None:
        self.say(f"nightly: new: {one.bucket} [{one.digest}]")
        if not self.plan.open_command:
            return
        name = f"open-{one.digest}"
        self._step(name, [*self.plan.open_command, str(folder)], python=False)
        if self.codes[name] == 0:
            (self.plan.opened / one.digest).touch()

    def _tefuzz(self, name: str, *arguments: str) -> None:
        self._step(name, ["-m", "harness.cli", *arguments])

    def _step(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, *, python: bool = True
    ) -> int | None:
        """Run a command and return its process id; what it prints is shown and kept in the output."""
        command = [sys.executable, *command] if python else command
        self.say(f"nightly: {name}: {shlex.join(command)}")
        log = self.plan.output / f"{name}.log"
        try:
            with (
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=os.environ | dict(environment or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                ) as process,
                log.open("w") as file,
            ):
                assert process.stdout is not None
                for line in process.stdout:
                    file.write(line)
                    file.flush()
                    self.say(line.rstrip("\n"))
            self.codes[name] = process.returncode
            return process.pid
        except OSError as error:
            self.say(f"nightly: {name}: cannot be started ({error.strerror})")
            self.codes[name] = ExitCode.BAD_INPUT
            return None


def worst(codes: Iterable[int]) -> ExitCode:
    """The most severe of several exit codes."""
    found = {code if code in (0, *SEVERITY) else ExitCode.OWN_ERROR for code in codes}
    return next((code for code in SEVERITY if code in found), ExitCode.CLEAN)
