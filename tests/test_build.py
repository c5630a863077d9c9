"""Values of a case: their own random stream for every purpose, and distributions that keep their word."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from harness.build import (
    DTYPES,
    draw_tensor,
    frozen_parameters,
    make_input,
    make_output_gradient,
    make_parameters,
    step_batch,
)
from harness.case import (
    Activation,
    Case,
    Checkpoint,
    Distribution,
    Input,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
    Step,
    replace,
)

LINEAR = Linear(out_features=64)
CASE = Case(layers=(LINEAR, LINEAR), steps=(Step(), Step(batch=(2, 8)), Step()))
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_values_repeat() -> None:
    for make in (make_input, make_output_gradient):
        assert torch.equal(make(CASE, 0), make(CASE, 0))
    first, again = make_parameters(CASE), make_parameters(CASE)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_every_purpose_has_its_own_values() -> None:
    def all_tensors(case: Case) -> list[torch.Tensor]:
        tensors = [make(case, step) for make in (make_input, make_output_gradient) for step in range(3)]
        return [*tensors, *make_parameters(case).values()]

    tensors = all_tensors(CASE) + all_tensors(replace(CASE, seed=1))
    correlations = [
        abs(float(torch.corrcoef(torch.stack((a.flatten()[:64], b.flatten()[:64])))[0, 1]))
        for i, a in enumerate(tensors)
        for b in tensors[:i]
    ]
    assert max(correlations) < 0.6, "64 independent values; equal streams would give 1"


def test_adding_a_layer_changes_no_other_value() -> None:
    longer = replace(CASE, layers=(*CASE.layers, LayerNorm(), Residual(body=(LINEAR,))))
    parameters = make_parameters(longer)
    for name, value in make_parameters(CASE).items():
        assert torch.equal(parameters[name], value)
    assert torch.equal(make_input(longer, 1), make_input(CASE, 1))


def test_shapes_and_dtypes() -> None:
    layers = (Linear(out_features=32, bias=False), Checkpoint(body=(LayerNorm(), RMSNorm(), Activation())))
    case = replace(CASE, layers=layers, input=Input(batch=(4,), features=48, dtype="bfloat16"))
    assert [step_batch(case, index) for index in range(3)] == [(4,), (2, 8), (4,)]
    assert make_input(case, 1).shape == (2, 8, 48)
    assert make_output_gradient(case, 1).shape == (2, 8, 32)
    parameters = make_parameters(case)
    assert {name: tuple(value.shape) for name, value in parameters.items()} == {
        "0.weight": (32, 48),
        "1.0.weight": (32,),
        "1.0.bias": (32,),
        "1.1.weight": (32,),
    }
    tensors = [make_input(case, 0), make_output_gradient(case, 0), *parameters.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}


def test_a_centred_norm_starts_around_zero_and_a_plain_one_around_one() -> None:
    layers = (LayerNorm(), LayerNorm(zero_centered_gamma=True), RMSNorm(), RMSNorm(zero_centered_gamma=True))
    parameters = make_parameters(replace(CASE, layers=layers))
    means = [float(parameters[f"{index}.weight"].mean()) for index in range(4)]
    assert means == pytest.approx([1, 0, 1, 0], abs=0.2)


def test_frozen_parameters() -> None:
    layers = (
        Linear(out_features=64, frozen=("bias",)),
        Residual(body=(Checkpoint(body=(LayerNorm(frozen=("weight", "bias")),)), RMSNorm())),
    )
    assert frozen_parameters(layers) == {"0.bias", "1.0.0.weight", "1.0.0.bias"}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite_in_every_dtype(distribution: Distribution) -> None:
    for seed in range(5):
        values = draw_tensor(distribution, (64, 128), generator(seed))
        assert values.shape == (64, 128)
        assert values.dtype == torch.float32
        for dtype in DTYPES.values():
            assert bool(values.to(dtype).isfinite().all())
        assert bool((values != 0).any()) == (distribution != "zeros")


def test_distributions_keep_their_word() -> None:
    drawn = {name: draw_tensor(name, (256, 64), generator()) for name in DISTRIBUTIONS}
    assert abs(float(drawn["normal"].std()) - 1) < 0.05
    rows = drawn["wide_range_rows"].abs().amax(dim=-1)
    assert float(rows.max() / rows.min()) > 2**12
    exact = drawn["fp8_representable"]
    assert torch.equal(exact.to(torch.float8_e4m3fn).float(), exact)
    assert len(exact.unique()) == 29
    assert 0.002 < float((drawn["outliers"].abs() > 10).float().mean()) < 0.02
    assert torch.equal(drawn["one_hot_rows"].sum(-1), torch.ones(256))
    assert set(drawn["one_hot_rows"].unique().tolist()) == {0.0, 1.0}
    assert float(drawn["large"].std() / drawn["small"].std()) == pytest.approx(2**16, rel=0.05)
