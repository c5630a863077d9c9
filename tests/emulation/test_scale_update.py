"""Amax history and scale at the end of a step, against a plain loop over columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformer_engine_torch as tex
from hypothesis import given
from hypothesis import strategies as st

from harness.emulation.kernels.scale_update import next_scale

FLOAT_MAX = float(np.finfo(np.float32).max)
amaxes = st.sampled_from([0.0, 1.0, 2.5, 448.0, 1e-40, 1e30, math.inf, math.nan])


def expected_column(history: list[float], reduced: float, scale: float, algorithm: str, scaled_max: float):
    """One column of the update in Python floats: the rolled history and the new scale."""
    newest = reduced if reduced != 0 else history[0]
    largest = newest
    if newest != 0:
        rolled = [*history[1:], newest]
        if algorithm == "max":
            largest = max((value for value in rolled if not math.isnan(value)), default=0.0)
        history = [0.0, *rolled[1:]]
    elif algorithm == "max":
        largest = 0.0
    if math.isfinite(largest) and largest > 0:
        with np.errstate(over="ignore"):
            scale = float(np.float32(scaled_max) / np.float32(largest))
    return history, min(scale, FLOAT_MAX)


@given(
    columns=st.lists(
        st.tuples(st.lists(amaxes, min_size=4, max_size=4), amaxes, st.sampled_from([1.0, 3.0])), min_size=1, max_size=4
    ),
    length=st.integers(1, 4),
    algorithm=st.sampled_from(["max", "most_recent"]),
    margin=st.integers(0, 2),
    fp8_dtype=st.sampled_from([tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2]),
)
def test_update_equals_a_loop_over_columns(columns, length, algorithm, margin, fp8_dtype) -> None:
    histories = [history[:length] for history, _, _ in columns]
    history = torch.tensor(histories).t().contiguous()
    reduced = torch.tensor([value for _, value, _ in columns])
    scale = torch.tensor([value for _, _, value in columns])
    scaled_max = (448.0 if fp8_dtype == tex.DType.kFloat8E4M3 else 57344.0) / 2**margin

    tex.fused_amax_and_scale_update_after_reduction(reduced, [history], [scale], algorithm, fp8_dtype, margin)

    for column, (old, newest, old_scale) in enumerate(
        zip(histories, reduced.tolist(), [c[2] for c in columns], strict=True)
    ):
        old = torch.tensor(old).tolist()  # the fp32 values
        new_history, new_scale = expected_column(old, newest, old_scale, algorithm, scaled_max)
        np.testing.assert_array_equal(history[:, column].numpy(), np.float32(new_history))
        assert scale[column].item() == np.float32(new_scale)


def test_the_scale_keeps_its_value_when_nothing_usable_was_seen() -> None:
    seen = np.float32([2.0, 0.0, math.inf, math.nan, 1e-40])
    new = next_scale(seen, np.full(5, 7.0, dtype=np.float32), np.float32(448.0))
    assert new.tolist() == [224.0, 7.0, 7.0, 7.0, FLOAT_MAX]


def test_several_states_read_consecutive_parts_of_the_buffer() -> None:
    histories = [torch.zeros(2, 2), torch.zeros(2, 1)]
    scales = [torch.ones(2), torch.ones(1)]
    tex.fused_amax_and_scale_update_after_reduction(
        torch.tensor([1.0, 2.0, 4.0]), histories, scales, "max", tex.DType.kFloat8E4M3, 0
    )
    assert scales[0].tolist() == [448.0, 224.0]
    assert scales[1].tolist() == [112.0]
    assert histories[0].tolist() == [[0.0, 0.0], [1.0, 2.0]]


def test_unknown_algorithm_is_refused() -> None:
    with pytest.raises(RuntimeError, match="sometimes"):
        tex.fused_amax_and_scale_update_after_reduction(
            torch.ones(1), [torch.zeros(2, 1)], [torch.ones(1)], "sometimes", tex.DType.kFloat8E4M3, 0
        )
