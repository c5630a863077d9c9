"""Fuzzing for a set time: ``pytest fuzz/ --tefuzz-time SECONDS``.

The time is shared out among the tests. Each runs in rounds until its share is used up: a round ends at a finding, which
Hypothesis shrinks, and the next one, with another seed, looks for others. At the end the test fails with all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import Phase, settings

from harness.working_corpus import size

if TYPE_CHECKING:
    from harness.isolation import ReportedFinding

NO_LIMIT = 10**9
"""Examples per round: the time ends it."""


class TimeIsUp(BaseException):
    """Ends a round; no exception of a subject, so nothing on the way may catch it."""


def share(seconds: float, tests: int, workers: int) -> float:
    """The time of one of ``tests`` that ``workers`` run one after the other, so that all have the same."""
    return seconds / math.ceil(tests / max(1, min(workers, tests)))


class TimeBox:
    """The rounds of one test."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._reported: dict[str, ReportedFinding] = {}
        self._last: dict[str, ReportedFinding] = {}
        self._smallest: dict[str, ReportedFinding] = {}

    def check_time(self) -> None:
        """Raise ``TimeIsUp`` when no further case may run, be it to find or to shrink."""
        if self._clock() >= self._end:
            raise TimeIsUp

    def is_new(self, finding: ReportedFinding) -> bool:
        """Whether the bucket was found in no earlier round."""
        bucket = str(finding.bucket)
        if bucket in self._reported:
            return False
        self._last[bucket] = finding
        smallest = self._smallest.setdefault(bucket, finding)
        if size(finding.case) < size(smallest.case):
            self._smallest[bucket] = finding
        return True

    def run(self, test: Callable[[], Any], function: Any, seed: Callable[[int], int]) -> None:
        """Call ``test`` again and again; ``function`` is what ``given`` made. Raises what all rounds found."""
        rounds = 0
        own = settings(function._hypothesis_internal_use_settings, max_examples=NO_LIMIT)
        without_reuse = settings(own, phases=[phase for phase in own.phases if phase is not Phase.reuse])
        over = False
        while not over:
            # The first round tries the failures of earlier runs. In a later one they are no news, and Hypothesis
            # would forget them.
            function._hypothesis_internal_use_settings = without_reuse if rounds else own
            function._hypothesis_internal_use_seed = seed(rounds)
            try:
                test()
                over = True  # there are no further cases
            except TimeIsUp:
                over = True
                self._reported |= self._smallest
            except Exception:
                if not self._last:
                    raise
                self._reported |= self._last  # Hypothesis runs the shrunk ones last
            self._last.clear()
            self._smallest.clear()
            rounds += 1
        self._raise_all()

    def _raise_all(self) -> None:
        findings = list(self._reported.values())
        if len(findings) == 1:
            raise findings[0].with_traceback(None)
        if findings:
            raise ExceptionGroup(f"{len(findings)} buckets", findings)
