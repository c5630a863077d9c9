"""The pytest side of the fuzz suite: options, header, workers, records and summary.

Loaded by pytest in every session of an environment that has tefuzz, so nothing heavy is imported here; the session
object is made by ``fuzz/conftest.py`` only. Cases run in a child of each worker (``harness.isolation``): the worker
itself draws, shrinks and writes, and never imports torch.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import re
import signal
import time
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from hypothesis.database import ExampleDatabase

    from harness.case import Case
    from harness.isolation import IsolatedRunner, Ready, ReportedFinding, Settings
    from harness.recorder import RunInfo
    from harness.replay import Kept, Replayed
    from harness.replay_plugin import ReplaySession
    from harness.time_box import TimeBox

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
        "--tefuzz-time",
        type=_positive,
        metavar="SECONDS",
        help="fuzz for so long, whatever the profile's number of cases; a test goes on after a finding",
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
    group.addoption(
        "--tefuzz-case-seconds",
        type=_positive,
        default=300.0,
        metavar="SECONDS",
        help="after so long a case counts as hung, which is a finding (default 300)",
    )
    group.addoption(
        "--tefuzz-case-memory",
        type=_positive,
        default=8.0,
        metavar="GIB",
        help="a case that needs more memory is a finding (default 8; without effect on CUDA)",
    )
    group.addoption(
        "--tefuzz-junit",
        type=Path,
        metavar="FILE",
        help="write JUnit XML with an entry for each bucket: new ones fail, known issues are skipped (pytest's own "
        "--junitxml has one for each test)",
    )
    group.addoption(
        "--tefuzz-workers-per-gpu",
        type=int,
        default=1,
        metavar="N",
        help="how many workers -n auto starts for each GPU; each gets one to itself or shares it (default 1)",
    )
    group.addoption(
        "--tefuzz-shard",
        metavar="I/N",
        help="run the I-th of N parts of the suite, for schedulers that only start commands; all parts with one seed "
        "(--hypothesis-seed) are the whole suite",
    )
    group.addoption(
        "--tefuzz-redis",
        metavar="URL",
        default=os.environ.get("TEFUZZ_REDIS"),
        help="share failing examples with other machines through this Redis server, redis://HOST:PORT/0 "
        "(default: $TEFUZZ_REDIS; needs `pip install -e '.[fleet]'`)",
    )


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


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
        self._use_gpu()
        self._gpus_in_use: dict[str, str] = {}
        load(self.profile, self._database())
        self.seed = self._seed()
        self.directory = self._directory()
        self.corpus_directory = self._corpus_directory()
        self.started = time.time()
        self._replay = self._replay_session()
        self.item = ""
        """Node id of the test that runs."""
        self._runner: _Runner | None = None
        self._time_box: TimeBox | None = None

    def _check_reverts(self) -> None:
        from harness.fixes import REVERTS

        for name in self.reverts:
            if name not in REVERTS:
                raise pytest.UsageError(f"--tefuzz-revert {name!r} is unknown; choose from {', '.join(REVERTS)}")
        for name, times in Counter(REVERTS[name].name for name in self.reverts).items():
            if times > 1:
                raise pytest.UsageError(f"--tefuzz-revert: the fix {name!r} can be undone once; give it once")

    def _use_gpu(self) -> None:
        """Keep to the GPU of this worker, before anything imports torch."""
        from harness.gpus import VARIABLE

        if self.worker_input is not None and self.worker_input["tefuzz_gpu"] is not None:
            os.environ[VARIABLE] = self.worker_input["tefuzz_gpu"]

    def _database(self) -> ExampleDatabase | None:
        from harness.examples import DatabaseError, example_database

        url = self.config.getoption("--tefuzz-redis")
        if not self.profile.keeps_examples or self.reverts:
            # The next run, with all fixes, would try the failures of this one first.
            return None
        try:
            return example_database(_examples_directory(self.config), url)
        except DatabaseError as error:
            raise pytest.UsageError(f"--tefuzz-redis: {error}") from error

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
    def replay_options(self) -> str:
        """What ``tefuzz run`` has to be told to see what this run sees."""
        from harness.replay_command import revert_options

        return revert_options(self.reverts)

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
        node.workerinput["tefuzz_gpu"] = self._gpu_for(node.gateway.id)

    def _gpu_for(self, worker: str) -> str | None:
        """The GPU of a worker: the one that fewest workers have; None on the CPU."""
        from harness.gpus import least_used, visible_gpus

        gpus = () if self.config.getoption("--tefuzz-device") == "cpu" else visible_gpus()
        if not gpus:
            return None
        self._gpus_in_use[worker] = least_used(gpus, self._gpus_in_use.values())
        return self._gpus_in_use[worker]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """The GPU of a worker that is gone is free for the one that replaces it."""
        self._gpus_in_use.pop(node.gateway.id, None)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this part of the suite."""
        given = self.config.getoption("--tefuzz-shard")
        if given is None:
            return
        index, count = _shard(given)
        kept = items[index - 1 :: count]
        # In a worker of xdist the exception would be one of xdist itself: there pytest ends with status 5, no tests.
        if items and not kept and self.is_controller:
            raise pytest.UsageError(
                f"--tefuzz-shard {given} is empty: there are {len(items)} tests, so at most that many parts"
            )
        self.config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_sessionstart(self) -> None:
        """Refuse a device or packages that cannot do the job, also where no header is shown."""
        if self.is_controller and not self.config.option.collectonly:
            self._check_places()
            _ = self._ready

    def _check_places(self) -> None:
        """Refuse a place where nothing can be written before hours are spent on what should go there."""
        from harness.commands.common import BadInput, writable_directory

        junit: Path | None = self.config.getoption("--tefuzz-junit")
        try:
            if not self.reverts:
                writable_directory(self.corpus_directory)
            if junit is not None:
                writable_directory(junit.absolute().parent)
        except BadInput as error:
            raise pytest.UsageError(error.message) from error

    @cached_property
    def _ready(self) -> Ready:
        from harness.device import DeviceError
        from harness.isolation import IsolationError

        try:
            ready = self.isolated.ready()
        except (DeviceError, IsolationError) as error:
            raise pytest.UsageError(str(error)) from error
        if ready.missing_fixes:
            raise pytest.UsageError("the installed packages lack a fix: " + "; ".join(ready.missing_fixes))
        if self.config.pluginmanager.hasplugin("dsession"):
            self.isolated.close()  # the workers of xdist have children of their own
        return ready

    @cached_property
    def isolated(self) -> IsolatedRunner:
        """What runs the cases of this process."""
        from harness.isolation import IsolatedRunner

        return IsolatedRunner(self._settings())

    def _settings(self) -> Settings:
        from harness.isolation import Settings

        return Settings(
            device=self.config.getoption("--tefuzz-device"),
            reverts=tuple(self.reverts),
            case_seconds=self.config.getoption("--tefuzz-case-seconds"),
            case_memory=int(self.config.getoption("--tefuzz-case-memory") * 2**30),
            check_fixes=self.is_controller,
        )

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
        if self.config.option.collectonly:
            return []
        lines = [
            f"tefuzz: {self._ready.environment.header()}",
            f"tefuzz: fixes present: {', '.join(FIXES)}; {what}",
        ]
        if self.reverts:
            lines.append(f"tefuzz: REVERTED: {', '.join(self.reverts).upper()}: THIS RUN HAS TO FAIL")
        return lines

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give every shard a random stream of its own, decided by the seed of the run."""
        self.item = item.nodeid
        function: Any = getattr(item, "obj", None)
        if hasattr(function, "hypothesis"):
            function._hypothesis_internal_use_seed = self._shard_seed(item, 0)

    def _shard_seed(self, item: pytest.Item, number: int) -> int:
        """The seed of a round of a shard; without a time box there is one round."""
        suffix = f" {number}" if number else ""
        return zlib.crc32(f"{self.seed} {item.nodeid}{suffix}".encode())

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """With a time box, let a fuzz test run in rounds until its share of the time is used up."""
        function: Any = pyfuncitem.obj
        seconds: float | None = self.config.getoption("--tefuzz-time")
        if seconds is None or not hasattr(function, "hypothesis"):
            return None
        from harness.time_box import TimeBox, share

        tests = sum(hasattr(getattr(item, "obj", None), "hypothesis") for item in pyfuncitem.session.items)
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        left = self.started + seconds - time.time()
        self._time_box = TimeBox(min(left, share(seconds, tests, workers)))
        names = pyfuncitem._fixtureinfo.argnames
        try:
            self._time_box.run(
                lambda: function(**{name: pyfuncitem.funcargs[name] for name in names}),
                # A test that is parametrised shares its function with its other shards.
                getattr(function, "__func__", function),
                lambda number: self._shard_seed(pyfuncitem, number),
            )
        finally:
            self._time_box = None
        return True

    def check(self, test: str, case: Case) -> None:
        """Run a case, record it, and raise its strongest finding unless that is a known issue."""
        __tracebackhide__ = True  # what a finding shows is in its words
        if self._runner is None:
            self._runner = _Runner(self)
        # pytest's own watchdog is for tests that take minutes, not for shards that run for hours.
        faulthandler.cancel_dump_traceback_later()
        if self._time_box is None:
            self._runner.check(test, case)
            return
        self._time_box.check_time()
        try:
            self._runner.check(test, case)
        except AssertionError as finding:
            if self._time_box.is_new(finding):  # type: ignore[arg-type]  # the runner raises nothing else
                raise

    def replay(self, kept: Kept) -> Replayed:
        """Replay a kept case; what comes of it is in what is returned."""
        assert self._replay is not None
        return self._replay.replay(kept)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: end the child, and do not let xdist wait for its workers, which would take 10 s and more."""
        self.isolated.close()
        if not self.is_controller:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only disturb the end of the session
            return
        session = self.config.pluginmanager.get_plugin("dsession")
        for gateway in getattr(getattr(session, "nodemanager", None), "group", ()):
            with suppress(AttributeError, ProcessLookupError):
                os.kill(gateway._io.popen.pid, signal.SIGINT)

    def pytest_sessionfinish(self) -> None:
        """End the child."""
        self.isolated.close()
        if self._runner is not None:
            self._runner.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """Show the essence of findings; with ``-v`` the tracebacks too."""
        from harness.terminal import shorten

        report = yield
        if call.excinfo is not None and self.config.option.verbose < 1:
            shorten(report, call.excinfo.value)
        return report

    def info(self) -> RunInfo:
        """What this run is, for those who read its records."""
        from harness.recorder import RunInfo

        environment = self.isolated.ready().environment.header()
        reverts = tuple(self.reverts)
        return RunInfo(
            profile=self.profile.name, seed=self.seed, reverts=reverts, started=self.started, environment=environment
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Merge the records of all workers, of dead ones too."""
        if not self.is_controller or not self.directory.exists():
            return
        from harness.ci import publish
        from harness.summary import summary_lines

        terminalreporter.section("tefuzz")
        for line in summary_lines(self.directory, time.time() - self.started, self.replay_options):
            terminalreporter.write_line(line)
        for line in publish(self.directory, self.config.getoption("--tefuzz-junit")):
            terminalreporter.write_line(line)


def _shard(given: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", given)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise pytest.UsageError(f"--tefuzz-shard {given!r} is no part: give I/N with I from 1 to N, as in 2/8")
    return index, count


def _examples_directory(config: pytest.Config) -> Path:
    """Where Hypothesis keeps examples; asking Hypothesis itself while pytest is configured makes it warn."""
    return Path(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", config.rootpath / ".hypothesis")) / "examples"


class _Runner:
    """Runs, records and raises; made when the first case runs."""

    def __init__(self, session: FuzzSession) -> None:
        from harness.judge import FirstFindings, IsolatedJudge
        from harness.recorder import Recorder
        from harness.working_corpus import WorkingCorpus

        self._session = session
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._recorder = Recorder(session.directory, worker)
        self._recorder.describe_run(session.info())
        # With a fix undone the findings are no findings.
        self._corpus = None if session.reverts else WorkingCorpus(session.corpus_directory)
        judge = IsolatedJudge.of(session.isolated, confirms=True)
        self._first_findings = FirstFindings(judge.judge_first, self._recorder.before)

    def check(self, test: str, case: Case) -> None:
        from harness.essence import essence
        from harness.replay_command import run_command

        __tracebackhide__ = True
        judgement = self._first_findings.judge(case)
        verdict, known = judgement.verdict, None
        if judgement.unexplained:
            # Records and file names are about what is raised, not about the known issue that came before it.
            verdict = replace(verdict, findings=judgement.unexplained)
        elif judgement.explained:
            known = judgement.explained[0][1].id
        new = judgement.unexplained[0] if judgement.unexplained else None
        if new is not None and self._is_shrunk_elsewhere(new):
            self._recorder.after(test, verdict, known, self._session.item)
            return
        # What is worth keeping is on disk before the case is no longer in flight: a crash in between loses nothing.
        options = self._session.replay_options
        replay = "" if new is None else run_command(self._recorder.failure_path(verdict), options)
        if self._corpus is not None:
            self._corpus.add(case, test, None if new is None else str(new.bucket))
        self._recorder.after(test, verdict, known, self._session.item)
        if new is not None:
            new.__notes__ = [f"  replay: {replay}"]
            new.essence = "\n".join(essence(new, replay))
            self._recorder.describe_failure(verdict, new.essence)
            raise new.with_traceback(None)

    def _is_shrunk_elsewhere(self, finding: ReportedFinding) -> bool:
        """Whether this finding ends processes and is another test's: each time costs a new process, so one shrinks."""
        from harness.isolation import ProcessFinding

        return isinstance(finding, ProcessFinding) and not self._recorder.claim(finding.bucket, self._session.item)

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
