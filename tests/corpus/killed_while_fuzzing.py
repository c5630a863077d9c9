"""A fuzz worker that finds something in every case, as fast as it can: for ``test_working_corpus``, which kills it.

Prints ``running ID`` when a case runs, which is after its breadcrumb was written, and ``done ID`` when it is done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.bucket import Bucket
from harness.case import Case, Linear
from harness.isolation import ReportedFinding, ReportedVerdict
from harness.judge import FirstFindings, Judgement
from harness.pytest_plugin import _Runner
from harness.recorder import Recorder
from harness.working_corpus import WorkingCorpus


def say(what: str, case: Case) -> None:
    """Tell the parent at once."""
    sys.stdout.write(f"{what} {case.id}\n")
    sys.stdout.flush()


class Judge:
    """Finds each case in a bucket of its own."""

    def judge_first(self, case: Case) -> Any:
        say("running", case)
        found = (ReportedFinding(case, Bucket("found", "run", str(case.seed), "subject", "no recipe"), "found"),)
        return Judgement(ReportedVerdict(case, found, None, 0, {}, ""), (), found)


def main(directory: Path) -> None:
    """Fuzz for ever."""
    runner = object.__new__(_Runner)
    runner._session = SimpleNamespace(replay_options="", item="")  # type: ignore[assignment]
    runner._recorder = Recorder(directory / "run", "gw0")
    runner._first_findings = FirstFindings(Judge().judge_first, runner._recorder.before)
    runner._corpus = WorkingCorpus(directory / "corpus")
    for seed in range(2**32):
        case = Case(layers=(Linear(out_features=64),), seed=seed)
        try:
            runner.check("te_v2", case)
        except ReportedFinding:
            say("done", case)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
