"""The process of a campaign that searches for one mutant: ``python -m harness.commands.mutant_search``.

Arguments: the mutant's name, the number of examples, the time box in seconds and the directory for what it leaves.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from harness.case import Case, pretty_json
from harness.device import activate
from harness.judge import Judge
from harness.mutants import Mutant, applied, mutant_named
from harness.mutants.base import FUSED_MODULE, FUSER, THUNDERFX, Pair
from harness.mutants.campaign import Files, Limits
from harness.mutants.results import Result
from harness.recorder import write_atomically
from harness.search import Search
from strategies import cases, fused_module_cases, fuser_cases

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.checks.base import Finding
    from harness.isolation import ReportedFinding

SEED = 0
"""Equal campaigns draw equal cases."""
SHRINK_SECONDS = 40.0
"""The case has to be small enough to read, not the smallest."""


def command(mutant: Mutant, limits: Limits, files: Files) -> list[str]:
    """The command line of the process."""
    # With faulthandler a crash leaves its stack in the output.
    options = ["-X", "faulthandler", "-m", __spec__.name]
    arguments = [mutant.name, str(limits.max_examples), str(limits.time_box), str(files.directory)]
    return [sys.executable, *options, *arguments]


def main(name: str, max_examples: int, time_box: float, files: Files) -> None:
    """Search and leave the result."""
    activate()
    mutant, campaign = mutant_named(name), os.getppid()

    def before(case: Case) -> None:
        if os.getppid() != campaign:
            sys.exit("the campaign has ended")
        write_atomically(files.in_flight, pretty_json(case))

    search = Search(_strategy(mutant), max_examples, time_box, SHRINK_SECONDS, before)
    with applied(mutant):
        search.run(SEED)
    result = _result(mutant, search)
    write_atomically(files.result, msgspec.json.encode(result).decode())


def _strategy(mutant: Mutant) -> SearchStrategy[Case]:
    """Cases of all pairs of subjects that reach the mutant; they shrink to the first pair."""
    return st.one_of(*map(_pair_strategy, mutant.pairs))


def _pair_strategy(pair: Pair) -> SearchStrategy[Case]:
    if pair == FUSED_MODULE:
        return fused_module_cases()
    if pair == THUNDERFX:
        return cases("transformer_engine", entries=("thunderfx",))
    return fuser_cases() if pair == FUSER else cases(pair)  # type: ignore[arg-type]  # the others are executors


def _result(mutant: Mutant, search: Search) -> Result:
    finding = search.finding
    common = Result(
        mutant=mutant.name,
        digest=mutant.digest,
        outcome="survived",
        max_examples=search.max_examples,
        examples=search.examples_to_find or search.executions,
        seconds=round(search.seconds_to_find or search.seconds, 1),
        executions=search.executions,
    )
    if finding is None:
        return common
    found = msgspec.structs.replace(common, by=finding.check, bucket=str(finding.bucket), case=finding.case)
    # A bug of the released versions that nobody knows yet must not count for the mutant.
    if (other := _without_mutant(finding)) is not None:
        return msgspec.structs.replace(found, outcome="error", by=f"found without the mutant too: {other.bucket}")
    return msgspec.structs.replace(found, outcome="killed")


def _without_mutant(finding: Finding | ReportedFinding) -> Finding | None:
    return Judge.of(activate()).first_unexplained(finding.case)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Files(Path(sys.argv[4])))
