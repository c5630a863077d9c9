"""Inputs: shapes on and off the edges that FP8 kernels care about, dtypes and value distributions."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.case import Batch, Distribution, Dtype, GradientLayout, Input, Layout

ALIGNED_BATCHES: tuple[Batch, ...] = ((16,), (32,), (2, 8), (64,), (2, 2, 8), (1, 16), (4, 16))
"""Leading dimensions whose product is a multiple of 16, as the three FP8 GEMMs of a training step want."""

ODD_BATCHES: tuple[Batch, ...] = ((1,), (3, 4), (17,), (8,), (), (0,), (2, 0))
"""Leading dimensions that FP8 does not take: Thunder must leave the linear to torch. 8 rows pass TE's check and are
refused by the weight gradient's GEMM, in eager TE and under the JIT alike. () is a single vector, 0 an empty batch."""

DISTRIBUTIONS: tuple[Distribution, ...] = (
    "normal",
    "wide_range_rows",
    "fp8_representable",
    "outliers",
    "one_hot_rows",
    "large",
    "small",
    "zeros",
)

TAME_DISTRIBUTIONS: tuple[Distribution, ...] = tuple(name for name in DISTRIBUTIONS if name != "large")
"""Without values that several gated activations in a row square beyond float32."""

WIDE_DISTRIBUTIONS: tuple[Distribution, ...] = ("wide_range_rows", "outliers", "large")
"""With values that float16 does not survive when several layers square them."""

LAYOUTS: tuple[Layout, ...] = ("contiguous",) * 6 + ("transposed", "strided")
GRADIENT_LAYOUTS: tuple[GradientLayout, ...] = ("contiguous",) * 6 + ("expanded", "transposed", "strided")
"""``output.sum()`` makes an expanded one, with a stride of 0, which kernels that take a pointer must not be given."""

SUMMABLE_GRADIENT_LAYOUTS: tuple[GradientLayout, ...] = ("contiguous",) * 6 + ("expanded",)
"""Those whose sum over the rows, the gradient of a bias, is alike in any order: te.ops flattens the rows, Thunder does
not, and torch adds up other layouts in another order."""


def inputs(
    batches: tuple[Batch, ...],
    widths: tuple[int, ...],
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16", "float16"),
    distributions: tuple[Distribution, ...] = DISTRIBUTIONS,
    gradient_layouts: tuple[GradientLayout, ...] = GRADIENT_LAYOUTS,
) -> st.SearchStrategy[Input]:
    """An input. Shrinks to ``[16, 64]`` float32 normal values that need no gradient.

    An input without gradient makes the first linear's cache key equal to that of later ones' only in some models:
    both settings are needed to reach Thunder's cache from both sides.
    """
    return st.builds(
        Input,
        batch=st.sampled_from(batches),
        features=st.sampled_from(widths),
        dtype=st.sampled_from(dtypes),
        distribution=st.sampled_from(distributions),
        requires_grad=st.booleans(),
        layout=st.sampled_from(LAYOUTS),
        gradient_layout=st.sampled_from(gradient_layouts),
    )
