"""The fixes that tefuzz can undo, to prove that it finds the bugs they mended.

    with reverted(["caching"]):
        ...  # Thunder reuses the TE state of one linear for another

A revert changes nothing in the installed packages: it patches this process and takes the patch back when the context
ends, also by an exception. Importing this package is cheap; what a fix is made of is imported when it is asked for.
"""

from __future__ import annotations

import atexit
import difflib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from harness.fixes.base import Fix, FixError

__all__ = ["FIXES", "REVERTS", "Fix", "FixError", "missing_fixes", "revert_until_exit", "reverted"]

FIXES: dict[str, Fix] = {
    fix.name: fix
    for fix in (
        Fix(
            name="caching",
            title="gradient rules of stateful symbols are not cached",
            symptom="two equal linears share one FP8 state (te_linear_N bound twice); numbers go wrong from step 2 on",
            project="Lightning-AI/lightning-thunder",
            number=82,
            first_release="lightning-thunder 0.2.0",
            module="harness.fixes.caching",
            reverts=("caching",),
        ),
        Fix(
            name="remat",
            title="values recomputed in backward get names of their own",
            symptom="forward and backward trace of a checkpointed region compute the same names",
            project="Lightning-AI/lightning-thunder",
            number=2203,
            first_release="lightning-thunder 0.2.5",
            module="harness.fixes.remat",
            reverts=("remat", "remat-names"),
        ),
        Fix(
            name="fuser",
            title="the operation fuser counts parameters once, before FSDP hides them",
            symptom="backward raises 'Expected op 0 to generate 0 param grads, but got 2'",
            project="NVIDIA/TransformerEngine",
            number=1403,
            first_release="transformer-engine 2.1",
            module="harness.fixes.fuser",
            reverts=("fuser",),
        ),
    )
}
"""By name."""

REVERTS: dict[str, Fix] = {revert: fix for fix in FIXES.values() for revert in fix.reverts}
"""Name of a revert -> the fix that it undoes. These are the names that ``reverted`` takes."""


def missing_fixes() -> list[Fix]:
    """The fixes that the installed packages (and patches of this process) do not have."""
    return [fix for fix in FIXES.values() if not fix.is_present()]


@contextmanager
def reverted(names: Iterable[str]) -> Iterator[None]:
    """Undo fixes, by names of ``REVERTS``, until the context ends; all of them or, with ``FixError``, none.

    Unknown names, a name given twice and two ways to undo one fix are refused.
    """
    chosen = list(names)
    for name in chosen:
        if name not in REVERTS:
            raise FixError(_unknown(name))
    with ExitStack() as stack:
        for name in chosen:
            stack.enter_context(REVERTS[name].reverted(name))
        yield


def revert_until_exit(*names: str) -> None:
    """Undo fixes for the rest of this process: for programs that show what a fix mended."""
    undone = ExitStack()
    undone.enter_context(reverted(names))
    # Not left to the garbage collector: at the end of the process it would come when modules are already gone.
    atexit.register(undone.close)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, REVERTS, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(REVERTS)}."
    return f"there is no revert {name!r}: {remedy}"
