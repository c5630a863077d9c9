"""The pytest side of the fuzz suite: options, header, watchdog, records and summary.

Loaded by pytest in every session of an environment that has tefuzz, so nothing heavy is imported here; the session
object is made by ``fuzz/conftest.py`` only.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
import zlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.case import Case
    from harness.device import Environment
    from harness.replay import Kept, Replayed
    from harness.replay_plugin import ReplaySession

CASE_TIMEOUT = 300.0
"""Seconds after which a case counts as hung: the stacks of all threads are printed and the worker is ended."""
REPLAY_TESTS = "test_replay.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the fuzz suite."""
    group = parser.getgroup("tefuzz", "fuzzing Transformer Engine under the Thunder JIT")
    group.addoption(
        "--tefuzz-profile",
        default="dev",
        help="how much to run: dev (about 200 cases, the default), ci-short, ci (about 1,000), nightly, replay",
    )
    group.addoption(
        "--tefuzz-device",
        default="auto",
        choices=("auto", "cuda", "cpu"),
        help="cuda: the real TE extension; cpu: its emulation; auto (default): cuda where there is a device",
    )
    group.addoption(
        "--tefuzz-revert",
        action="append",
        default=[],
        metavar="FIX",
        help="run with this fix undone, to see that its bug is found: caching, remat, remat-names, fuser (repeatable)",
    )
    group.addoption(
        "--tefuzz-corpus",
        metavar="DIR",
        help="where new findings and cases with new pairs of features are kept "
        "(default: $TEFUZZ_CORPUS, or .tefuzz/corpus); a run with --tefuzz-revert keeps none",
    )
    group.addoption(
        "--tefuzz-replay",
        action="append",
        default=[],
        metavar="DIR|FILE",
        help="replay kept cases instead of fuzzing (repeatable); exit codes as those of `tefuzz replay`",
    )
    group.addoption(
        "--tefuzz-resume",
        action="store_true",
        help="with --tefuzz-replay: go on where the last replay was interrupted",
    )
    group.addoption(
        "--tefuzz-records",
        metavar="FILE",
        help="with --tefuzz-replay: where outcomes are kept for --tefuzz-resume (default: .tefuzz/replay.jsonl)",
    )


class FuzzSession:
    """State of one pytest process (controller or xdist worker) that runs the fuzz suite."""

    def __init__(self, config: pytest.Config) -> None:
        from harness.profiles import PROFILES, load

        self.config = config
        self.worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        name = config.getoption("--tefuzz-profile")
        if name not in PROFILES:
            raise pytest.UsageError(f"--tefuzz-profile {name!r} is unknown; choose one of {', '.join(PROFILES)}")
        self.profile = PROFILES[name]
        self.reverts: list[str] = config.getoption("--tefuzz-revert")
        self._check_reverts()
        load(self.profile, _examples_directory(config), fixes_undone=bool(self.reverts))
        self.seed = self._seed()
        self.directory = self._directory()
        self.corpus_directory = self._corpus_directory()
        self.started = time.time()
        self._replay = self._replay_session()
        self._undo = ExitStack()
        self._runner: Any = None

    def _check_reverts(self) -> None:
        from harness.fixes import REVERTS

        for name in self.reverts:
            if name not in REVERTS:
                raise pytest.UsageError(f"--tefuzz-revert {name!r} is unknown; choose from {', '.join(REVERTS)}")
        for name, times in Counter(REVERTS[name].name for name in self.reverts).items():
            if times > 1:
                raise pytest.UsageError(f"--tefuzz-revert: the fix {name!r} can be undone once; give it once")

    def _seed(self) -> int:
        if self.worker_input is not None:
            return int(self.worker_input["tefuzz_seed"])
        given = self.config.getoption("--hypothesis-seed", None)
        if given is not None and str(given) != "random":
            if not str(given).isdecimal():
                raise pytest.UsageError(f"--hypothesis-seed {given!r} is no number; give an integer or 'random'")
            return int(given)
        fixed = self.profile.fixed_seed
        return random.randrange(2**32) if fixed is None or given == "random" else fixed

    def _directory(self) -> Path:
        if self.worker_input is not None:
            return Path(self.worker_input["tefuzz_directory"])
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return self.config.rootpath / ".tefuzz" / "runs" / f"{stamp}-{os.getpid()}"

    def _corpus_directory(self) -> Path:
        from harness.working_corpus import default_directory

        if self.worker_input is not None:
            return Path(self.worker_input["tefuzz_corpus"])
        given = self.config.getoption("--tefuzz-corpus")
        # Absolute: workers may run elsewhere.
        return (Path(given) if given else default_directory(self.config.rootpath)).absolute()

    def _replay_session(self) -> ReplaySession | None:
        paths: list[str] = self.config.getoption("--tefuzz-replay")
        if not paths:
            if self.config.getoption("--tefuzz-resume"):
                raise pytest.UsageError("--tefuzz-resume goes on with a replay: give --tefuzz-replay DIR too")
            return None
        from harness.replay_plugin import ReplaySession

        session = ReplaySession(self, paths)
        self.config.pluginmanager.register(session, "tefuzz-replay")
        return session

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Either kept cases are replayed or new ones are drawn."""
        if collection_path.suffix != ".py":
            return None
        return True if (collection_path.name == REPLAY_TESTS) != (self._replay is not None) else None

    @property
    def is_controller(self) -> bool:
        """Whether workers of xdist run the tests, or this process does without xdist."""
        return self.worker_input is None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker what all workers share."""
        node.workerinput["tefuzz_seed"] = self.seed
        node.workerinput["tefuzz_directory"] = str(self.directory)
        node.workerinput["tefuzz_corpus"] = str(self.corpus_directory)

    def pytest_sessionstart(self) -> None:
        """Refuse a device or packages that cannot do the job, also where no header is shown."""
        if self.is_controller and not self.config.option.collectonly:
            _ = self._usable_environment

    @cached_property
    def _usable_environment(self) -> Environment:
        from harness.device import DeviceError, activate
        from harness.fixes import missing_fixes

        try:
            environment = activate(self.config.getoption("--tefuzz-device"))
        except DeviceError as error:
            raise pytest.UsageError(str(error)) from error
        missing = missing_fixes()
        if missing:
            raise pytest.UsageError(
                "the installed packages lack a fix: "
                + "; ".join(f"{fix.name} ({fix.title}), which {fix.first_release} has" for fix in missing)
            )
        return environment

    def pytest_report_header(self) -> list[str]:
        """Versions, device, fixes, profile and seed."""
        from harness.fixes import FIXES

        if self._replay is not None:
            what = f"replaying {self._replay.title}"
        else:
            what = (
                f"profile {self.profile.name}, seed {self.seed}, "
                f"records in {self.directory.relative_to(self.config.rootpath)}"
            )
        lines = [
            f"tefuzz: {self._usable_environment.header()}",
            f"tefuzz: fixes present: {', '.join(FIXES)}; {what}",
        ]
        if self.reverts:
            lines.append(f"tefuzz: REVERTED: {', '.join(self.reverts).upper()}: THIS RUN HAS TO FAIL")
        return lines

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give every shard a random stream of its own, decided by the seed of the run."""
        function: Any = getattr(item, "obj", None)
        if hasattr(function, "hypothesis"):
            function._hypothesis_internal_use_seed = zlib.crc32(f"{self.seed} {item.nodeid}".encode())

    def check(self, test: str, case: Case) -> None:
        """Run a case, record it, and raise its strongest finding unless that is a known issue."""
        if self._runner is None:
            self._runner = _Runner(self)
        faulthandler.dump_traceback_later(CASE_TIMEOUT, exit=True, file=sys.__stderr__ or sys.stderr)
        try:
            self._runner.check(test, case)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def replay(self, kept: Kept) -> Replayed:
        """Replay a kept case; what comes of it is in what is returned."""
        assert self._replay is not None
        faulthandler.dump_traceback_later(CASE_TIMEOUT, exit=True, file=sys.__stderr__ or sys.stderr)
        try:
            return self._replay.replay(kept)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def activate(self) -> None:
        """Import the subjects and undo the fixes that the run is to go without."""
        from harness.device import activate
        from harness.fixes import reverted

        activate(self.config.getoption("--tefuzz-device"))
        self._undo.enter_context(reverted(self.reverts))

    def pytest_sessionfinish(self) -> None:
        """Put reverted fixes back."""
        self._undo.close()
        if self._runner is not None:
            self._runner.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Merge the records of all workers, of dead ones too."""
        if not self.is_controller or not self.directory.exists():
            return
        from harness.summary import summary_lines

        terminalreporter.section("tefuzz")
        for line in summary_lines(self.directory, time.time() - self.started):
            terminalreporter.write_line(line)


def _examples_directory(config: pytest.Config) -> Path:
    """Where Hypothesis keeps examples; asking Hypothesis itself while pytest is configured makes it warn."""
    return Path(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", config.rootpath / ".hypothesis")) / "examples"


class _Runner:
    """The part of a session that needs torch, made when the first case runs."""

    def __init__(self, session: FuzzSession) -> None:
        from harness.device import activate
        from harness.judge import FirstFindings, Judge
        from harness.recorder import Recorder
        from harness.working_corpus import WorkingCorpus

        session.activate()
        self._reverts = session.reverts
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._recorder = Recorder(session.directory, worker)
        self._first_findings = FirstFindings(Judge.of(activate()), self._recorder.before)
        # With a fix undone the findings are no findings.
        self._corpus = None if session.reverts else WorkingCorpus(session.corpus_directory)

    def check(self, test: str, case: Case) -> None:
        judgement = self._first_findings.judge(case)
        verdict, known = judgement.verdict, None
        if judgement.unexplained:
            # Records and file names are about what is raised, not about the known issue that came before it.
            verdict = replace(verdict, findings=judgement.unexplained)
        elif judgement.explained:
            known = judgement.explained[0][1].id
        # What is worth keeping is on disk before the case is no longer in flight: a crash in between loses nothing.
        path = self._recorder.failure_path(verdict) if judgement.unexplained else None
        if self._corpus is not None:
            bucket = str(judgement.unexplained[0].bucket) if judgement.unexplained else None
            self._corpus.add(case, test, bucket)
        self._recorder.after(test, verdict, known)
        if judgement.unexplained:
            finding = judgement.unexplained[0]
            reverts = "".join(f" --revert {name}" for name in self._reverts)
            finding.__notes__ = [f"  replay: tefuzz run {path}{reverts}"]
            raise finding.with_traceback(None)

    def close(self) -> None:
        self._recorder.close()


def register_fuzz_session(config: pytest.Config) -> FuzzSession:
    """Make this pytest process part of a fuzz run; ``fuzz/conftest.py`` calls it."""
    session = FuzzSession(config)
    config.pluginmanager.register(session, "tefuzz-session")
    return session


@pytest.fixture(scope="session")
def fuzz(request: pytest.FixtureRequest) -> FuzzSession:
    """The fuzz session of this process."""
    session = request.config.pluginmanager.get_plugin("tefuzz-session")
    assert session is not None, "the fixture `fuzz` belongs to the tests below fuzz/"
    return session
