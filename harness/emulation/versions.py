"""Everything in which Transformer Engine releases differ, as far as the extension is concerned.

Checked with 2.9.0 and 2.20.2. A release in between is treated like 2.20; tests/emulation/test_signatures.py tells which
functions an unknown release calls differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class VersionFacts:
    """One release's answers; each field says what is so when it is True."""

    has_short_sequence_attention: bool
    """The fused attention backends include the one for short sequences; TE compares the member set."""

    tensors_take_device: bool
    """Constructors of tensor subclasses take ``device``, those of bare storages ``fake_dtype``."""

    scales_can_be_swizzled: bool
    """MXFP8 and NVFP4 tensors carry ``with_gemm_swizzled_scales``."""

    nvfp4_has_variants: bool
    """NVFP4 tensors know row scaling, 4-over-6 and the largest E4M3 scale."""

    block_format_is_chosen: bool
    """128-block tensors carry ``data_format`` (GEMM_READY or COMPACT)."""

    current_scaling_keeps_buffers: bool
    """Current-scaling quantizers own ``scale`` and ``amax`` buffers that the kernels overwrite."""

    norm_amax_of_rounded: bool
    """After a norm, amax is taken of the value rounded to the output dtype, not of the fp32 value."""

    nvfp4_folds_sixth: bool
    """NVFP4 block scales are ``amax * (s / 6)`` rather than ``(amax / 6) * s``."""

    e8m0_reciprocal_has_gaps: bool
    """MXFP8 multiplies a block of exponent 0 by 1 and one of exponent 254 by 0, instead of 2**127 and 2**-127."""

    gemm_reads_either_fp8_copy: bool
    """Where FP8 needs no transpose, a product takes a transposed copy if that is all there is."""

    @classmethod
    def of(cls, version: Version) -> VersionFacts:
        """The facts of a release."""
        modern = version >= Version("2.10")
        return cls(
            has_short_sequence_attention=version < Version("2.16"),
            tensors_take_device=modern,
            scales_can_be_swizzled=modern,
            nvfp4_has_variants=modern,
            block_format_is_chosen=not modern,
            current_scaling_keeps_buffers=not modern,
            norm_amax_of_rounded=modern,
            nvfp4_folds_sixth=modern,
            e8m0_reciprocal_has_gaps=not modern,
            gemm_reads_either_fp8_copy=modern,
        )
