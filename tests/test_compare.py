"""The two rules of comparison: bit for bit, and within a bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from harness.compare import Bounded, Difference, Exact

VALUES = torch.tensor([[0.0, 1.0, -2.0], [3.5, 1e-30, 4.0]])


def exact(subject: Tensor, reference: Tensor) -> Difference | None:
    return Exact().difference("0 output", subject, reference)


def changed(row: int, column: int, value: float) -> Tensor:
    copy = VALUES.clone()
    copy[row, column] = value
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_equal_bits_are_equal(dtype: torch.dtype) -> None:
    assert exact(VALUES.to(dtype), VALUES.to(dtype)) is None
    assert exact(VALUES.to(dtype).T, VALUES.to(dtype).T.contiguous()) is None, "strides do not matter"
    assert exact(torch.tensor(2.0), torch.tensor(2.0)) is None
    assert exact(torch.empty(0, 3), torch.empty(0, 3)) is None
    infinite = torch.tensor([math.inf, -math.inf])
    assert exact(infinite, infinite.clone()) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_ulp_is_a_difference(dtype: torch.dtype) -> None:
    reference = VALUES.to(dtype)
    subject = reference.clone()
    subject[1, 0] = (
        torch.nextafter(reference[1, 0].float(), torch.tensor(9.0))
        if dtype == torch.float32
        else 3.5 * (1 + torch.finfo(dtype).eps)
    )
    found = exact(subject, reference)
    assert found is not None
    assert (found.differing, found.elements, found.first_index) == (1, 6, (1, 0))
    assert found.reference_value == 3.5
    assert 0 < found.largest <= 4 * torch.finfo(dtype).eps
    assert found.allowed == 0


def test_minus_zero_is_not_zero() -> None:
    found = exact(changed(0, 0, -0.0), VALUES)
    assert found is not None
    assert found.first_index == (0, 0)
    assert "-0.0 against 0.0" in str(found)


def test_nan_equals_nan_only() -> None:
    nan = changed(0, 1, math.nan)
    other_bits = nan.clone()
    other_bits.view(torch.int32)[0, 1] = 0x7FC00001
    assert exact(nan, nan.clone()) is None
    assert exact(nan, other_bits) is None, "the payload of a NaN is nobody's promise"
    for pair in ((nan, VALUES), (VALUES, nan)):
        found = exact(*pair)
        assert found is not None
        assert found.largest == math.inf
        assert found.differing == 1
        assert "nan" in str(found)
    assert exact(changed(0, 1, math.inf), VALUES) is not None


def test_shape_and_dtype_are_part_of_equality() -> None:
    for subject, form in (
        (VALUES.reshape(3, 2), "float32[3, 2] against float32[2, 3]"),
        (VALUES.reshape(1, 2, 3), "float32[1, 2, 3]"),
        (VALUES.to(torch.bfloat16), "bfloat16[2, 3] against float32[2, 3]"),
        (VALUES[:1], "float32[1, 3]"),
    ):
        for comparison in (Exact(), bounded(VALUES)):
            found = comparison.difference("0 output", subject, VALUES)
            assert found is not None
            assert form in str(found)


def test_a_scalar_can_differ() -> None:
    found = exact(torch.tensor(2.0), torch.tensor(1.0))
    assert found is not None
    assert (found.first_index, found.subject_value, found.reference_value) == ((), 2.0, 1.0)


def bounded(values: Tensor, allowed: float = 1e-3) -> Bounded:
    bound = torch.full_like(values, allowed, dtype=torch.float64)
    return Bounded({"0 output": values.double()}, {"0 output": bound}, "a reason")


def test_bounded() -> None:
    rule = bounded(VALUES)

    def difference(subject: Tensor) -> Difference | None:
        # The reference is not looked at: the bound is around float64.
        return rule.difference("0 output", subject, VALUES + 7)

    assert difference(VALUES) is None
    assert difference(VALUES + 0.9e-3) is None
    assert difference(changed(0, 0, -0.0)) is None
    for value in (1.0011, 0.9989, math.nan, math.inf, -math.inf):
        found = difference(changed(0, 1, value))
        assert found is not None
        assert (found.differing, found.first_index, found.allowed) == (1, (0, 1), 1e-3)
        assert "a reason" in str(found)
    with pytest.raises(KeyError):
        rule.difference("1 output", VALUES, VALUES)


def test_a_bound_of_its_own_for_every_row() -> None:
    allowed = torch.tensor([[1.0], [1e-6]], dtype=torch.float64).expand(2, 3)
    rule = Bounded({"0 output": VALUES.double()}, {"0 output": allowed}, "rows")
    assert rule.difference("0 output", changed(0, 1, 1.9), VALUES) is None
    assert rule.difference("0 output", changed(1, 0, 3.6), VALUES) is not None
