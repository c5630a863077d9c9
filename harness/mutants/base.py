"""What a mutant is. Imports no torch, Thunder or TE: listing the mutants must stay cheap."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from harness.fixes.base import FixError

Pair = Literal["transformer_engine", "transformer_engine_v1", "torch", "thunderfx", "fuser", "fused_module"]
"""Which cases are drawn: those of an executor of Thunder, of ThunderFX, of TE's operation fuser or fused modules."""

V2: Pair = "transformer_engine"
V1: Pair = "transformer_engine_v1"
TORCH: Pair = "torch"
THUNDERFX: Pair = "thunderfx"
FUSER: Pair = "fuser"
FUSED_MODULE: Pair = "fused_module"


class MutantError(FixError):
    """A mutant cannot be applied, or a name is unknown; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A small regression of one function."""

    name: str
    title: str
    """Which slip it is."""
    target: str
    """``module:qualified.name`` of the function."""
    changes: tuple[tuple[str, str], ...]
    """Fragments of its source, each of which stands there exactly once, and their replacements."""
    pairs: tuple[Pair, ...]
    """The cases that reach it, the best ones first: shrinking ends there."""
    symptom: str
    """What a user would see."""
    equivalent: str = ""
    """Why it changes nothing that could be found: then it need not be killed. Empty for all others."""

    @property
    def digest(self) -> str:
        """Changes with what the mutant does and where it is looked for."""
        content = repr((self.target, self.changes, self.pairs))
        return hashlib.sha256(content.encode()).hexdigest()[:10]
