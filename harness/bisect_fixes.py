"""Which of the fixes decides whether a case shows a bug: it is run with each of them in place and undone.

Importing this module is cheap; running needs ``harness.device.activate()`` to have run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.case import Case
from harness.fixes import REVERTS, reverted

if TYPE_CHECKING:
    from harness.checks.base import Finding
    from harness.run import Verdict


@dataclass(frozen=True, slots=True)
class Trial:
    """The case with some fixes undone."""

    undone: tuple[str, ...]
    verdict: Verdict

    def finding(self, bucket: str) -> Finding | None:
        """The finding in ``bucket``, which is given in full or as its digits."""
        found = (one for one in self.verdict.findings if bucket in (str(one.bucket), one.bucket.digest))
        return next(found, None)


def trials(run: Callable[[Case], Verdict], case: Case, undone: Sequence[str]) -> Iterator[Trial]:
    """The case as installed, with each fix undone, and as it was found: with ``undone`` and all of these but one."""
    whole = tuple(undone)
    sets = [(), *((name,) for name in REVERTS), *(_without(whole, name) for name in whole), whole]
    for chosen in dict.fromkeys(sets):
        with reverted(chosen):
            yield Trial(chosen, run(case))


def conclusion(done: Collection[Trial], bucket: str) -> str:
    """What the trials say about a bucket, in one sentence."""
    by_set = {trial.undone: trial.finding(bucket) is not None for trial in done}
    if by_set[()]:
        hidden = [names[0] for names, shows in by_set.items() if len(names) == 1 and not shows]
        also = f"; undoing {_and(hidden)} hides it" if hidden else ", whether a fix is undone or not"
        return f"no fix decides: the installed packages show it{also}"
    alone = [names[0] for names, shows in by_set.items() if len(names) == 1 and shows]
    if alone:
        return f"decided by {_and(alone)}: {_described(alone)}"
    whole = max((names for names, shows in by_set.items() if shows), key=len)
    needed = [name for name in whole if not by_set[_without(whole, name)]] or [*whole]
    return f"it takes {_and(needed)} together: {_described(needed)}"


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


def _described(names: Sequence[str]) -> str:
    fixes = dict.fromkeys(REVERTS[name] for name in names)
    return "; ".join(f"{fix.project}#{fix.number} ({fix.title}), in {fix.first_release} and later" for fix in fixes)
