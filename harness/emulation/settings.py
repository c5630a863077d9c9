"""What the emulated GPU and the installed Transformer Engine are: read by the facade and by the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from packaging.version import Version

from harness.emulation.versions import VersionFacts


@dataclass(frozen=True)
class Settings:
    """The one set of facts that decides version- and capability-dependent behaviour."""

    compute_capability: tuple[int, int]
    te_version: Version
    facts: VersionFacts

    @property
    def fp8_needs_transpose(self) -> bool:
        """FP8 matrix products exist in TN layout only (Hopper, consumer Blackwell): operands carry transposes.

        Source: ``nvte_is_non_tn_fp8_gemm_supported`` in common/transformer_engine.cpp.
        """
        major, _ = self.compute_capability
        return not (10 <= major < 12 or major >= 13)

    @property
    def block_scaling_becomes_mxfp8(self) -> bool:
        """From capability 10 on, 128-block FP8 products run as MXFP8 (pytorch/csrc/extensions/gemm.cpp)."""
        return self.compute_capability >= (10, 0)


_current: Settings | None = None


def configure(compute_capability: tuple[int, int]) -> Settings:
    """Fix the settings of this process; the TE version is that of the installed distribution."""
    global _current
    version = Version(metadata.version("transformer_engine"))
    _current = Settings(compute_capability, version, VersionFacts.of(version))
    return _current


def current() -> Settings:
    """The settings given at installation."""
    if _current is None:
        raise RuntimeError("harness.emulation.install() was not called")
    return _current
