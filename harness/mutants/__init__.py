"""Mutants: small regressions of the installed Thunder and TE, to see whether tefuzz would find them.

    with applied("v2-quantizers-swapped"):
        ...  # the activation is quantised with the scale of the weight

Each is a slip that a developer could make, or a historical fix undone, in one function. A mutant changes nothing in the
installed packages: it gives the function other code in this process and takes it back when the context ends. Importing
this package is cheap; what a mutant changes is imported when it is applied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager

from harness.fixes.base import FixError
from harness.mutants import autodiff, passes, te_fused_modules, te_ops, te_quantization, te_v1, te_v2, thunderfx
from harness.mutants.base import Mutant, MutantError

__all__ = ["MUTANTS", "Mutant", "MutantError", "applied", "mutant_named"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for area in (autodiff, passes, te_v2, te_v1, te_ops, te_fused_modules, te_quantization, thunderfx)
    for mutant in area.MUTANTS
}
"""By name, area by area."""

_active: list[str] = []
"""The mutant that is in force in this process, if any."""


def mutant_named(name: str) -> Mutant:
    """The mutant of that name; ``MutantError`` with the nearest name when there is none."""
    if name not in MUTANTS:
        close = difflib.get_close_matches(name, MUTANTS, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "`tefuzz mutants --list` shows all."
        raise MutantError(f"there is no mutant {name!r}: {remedy}")
    return MUTANTS[name]


@contextmanager
def applied(mutant: Mutant | str) -> Iterator[None]:
    """Run with ``mutant`` in force; needs ``harness.device.activate()`` to have run.

    ``MutantError`` names mutant, function and fragment when the installed source is not what the mutant was made for.
    One mutant at a time: two of them could hide each other.
    """
    from harness.fixes.patching import edited
    from harness.subjects import parts

    chosen = mutant_named(mutant) if isinstance(mutant, str) else mutant
    if _active:
        raise MutantError(f"mutant {_active[0]!r} is in force: leave that context before applying {chosen.name!r}")
    change = edited(chosen.target, chosen.changes)
    try:
        change.__enter__()
    except FixError as error:
        raise MutantError(f"mutant {chosen.name!r} cannot be applied: {error}") from error
    _active.append(chosen.name)
    # Parts that were compiled without the mutant, or will have been with it.
    parts.forget_compiled()
    try:
        yield
    finally:
        parts.forget_compiled()
        _active.clear()
        change.__exit__(None, None, None)
