"""Bounds from random rounding: plain torch is inside them, real errors are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.build import make_input, make_parameters
from harness.case import (
    Activation,
    AnyLayer,
    Case,
    Cast,
    Checkpoint,
    ExtraOutput,
    GatedActivation,
    InPlace,
    Input,
    Jit,
    LayerNorm,
    Linear,
    NoGrad,
    Rearrange,
    Residual,
    RMSNorm,
    Step,
    replace,
)
from harness.compare import Bounded, compared_tensors
from harness.program import compile_function, parameter_slots
from harness.rounding import MonteCarloArithmetic, bounds
from harness.subjects.base import Observation
from harness.subjects.eager_torch import EagerTorch
from harness.subjects.float64 import PRIMITIVE_ACTIVATIONS

LINEAR = Linear(out_features=32)
TORCH = Jit(executor="torch", entry="function")
ACTIVATIONS = tuple(Activation(function=name) for name in PRIMITIVE_ACTIVATIONS)
MODELS: dict[str, tuple[AnyLayer, ...]] = {
    "linears": (LINEAR, LINEAR),
    "norms": (LayerNorm(zero_centered_gamma=True), LINEAR, RMSNorm(zero_centered_gamma=True), LINEAR),
    "activations": tuple(layer for pair in zip([LINEAR] * 6, ACTIVATIONS, strict=True) for layer in pair),
    "gates": (Linear(out_features=64), GatedActivation(function="swiglu"), GatedActivation(function="qgeglu")),
    "regions": (Residual(body=(LayerNorm(), LINEAR, Checkpoint(body=(Activation(function="gelu"), LINEAR)))), LINEAR),
    "without grad": (
        NoGrad(body=(LINEAR, Activation(function="silu"))),
        LINEAR,
        NoGrad(body=(LayerNorm(),)),
    ),
    "shared": (
        Linear(out_features=32, weight_operation="scale"),
        LayerNorm(),
        Linear(out_features=32, parameters="tied", weight_operation="cast_and_back"),
        ExtraOutput(gradient=False),
        LINEAR,
        ExtraOutput(),
        Linear(out_features=32, parameters="called_again"),
        ExtraOutput(),
    ),
    "exact": (
        LINEAR,
        *(Rearrange(how=how) for how in ("transpose_twice", "reshape_twice", "split_and_concatenate")),
        *(InPlace(operation=operation) for operation in ("relu_", "mul_", "add_")),
        Cast(dtype="bfloat16", body=(LINEAR, Activation(function="silu"))),
    ),
    "frozen": (Linear(out_features=32, frozen=("weight", "bias")), Linear(out_features=16, bias=False)),
}


PLAIN_STEPS = (Step(), Step(mode="no_grad", batch=(2, 4)), Step(mode="eval"))
HABITS = (
    Step(backward="after_next_step"),
    Step(gradients="accumulated", optimizer="sgd"),
    Step(before="new_parameters", mode="no_grad", batch=(2, 4)),
    Step(backward="twice", gradients="zeroed", batch=(0,)),
    Step(mode="inference", batch=()),
)


def case_of(model: str, steps: tuple[Step, ...] = PLAIN_STEPS, **input_settings: object) -> Case:
    given = Input(batch=(8,), features=32, requires_grad=True, **input_settings)  # type: ignore[arg-type]
    return Case(layers=MODELS[model], input=given, steps=steps, jit=TORCH)


def tensors(observation: Observation) -> dict[str, Tensor]:
    """What was observed, by the keys of the bounds."""
    assert observation.failure is None, observation.failure
    return compared_tensors(observation)


def outside(rule: Bounded, found: dict[str, Tensor]) -> set[str]:
    return {key for key, value in found.items() if rule.difference(key, value, value) is not None}


@pytest.mark.parametrize("distribution", ["normal", "wide_range_rows", "zeros"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("steps", [PLAIN_STEPS, HABITS], ids=["plain", "habits"])
def test_plain_torch_is_inside(steps: tuple[Step, ...], model: str, dtype: str, distribution: str) -> None:
    case = case_of(model, steps, dtype=dtype, distribution=distribution)
    found = tensors(EagerTorch(case, "cpu").observe())
    rule = bounds(case)
    assert outside(rule, found) == set()
    assert set(found) == set(rule._exact), "every tensor has a bound and every bound a tensor"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_swapped_weight_gradient_is_outside(dtype: str) -> None:
    case = case_of("linears", dtype=dtype)
    found = tensors(EagerTorch(case, "cpu").observe())
    first, second = "0 gradient 0.weight", "0 gradient 1.weight"
    found[first], found[second] = found[second], found[first]
    assert outside(bounds(case), found) == {first, second}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dropped_bias_is_outside(dtype: str) -> None:
    case = case_of("linears", dtype=dtype)
    without = replace(case, layers=(Linear(out_features=32, bias=False), LINEAR))
    found = tensors(EagerTorch(without, "cpu").observe())
    assert {"0 output", "1 output", "2 output", "0 gradient 1.weight"} <= outside(bounds(case), found)


def test_another_gelu_is_outside() -> None:
    layers = (LINEAR, Activation(function="gelu"), LINEAR)
    case = replace(case_of("linears"), layers=layers)
    other = replace(case, layers=(LINEAR, Activation(function="gelu_tanh"), LINEAR))
    rule = bounds(case)
    assert outside(rule, tensors(EagerTorch(case, "cpu").observe())) == set()
    found = tensors(EagerTorch(other, "cpu").observe())
    assert {"0 output", "0 gradient 0.weight", "0 gradient input"} <= outside(rule, found)


def test_another_eps_is_outside() -> None:
    case = replace(case_of("norms"), layers=(LayerNorm(eps=1e-5), LINEAR))
    other = replace(case, layers=(LayerNorm(eps=1e-3), LINEAR))
    assert "0 output" in outside(bounds(case), tensors(EagerTorch(other, "cpu").observe()))


def test_nan_and_a_lost_row_are_outside() -> None:
    case = case_of("linears")
    rule = bounds(case)
    for value in (float("nan"), 0.0):
        found = tensors(EagerTorch(case, "cpu").observe())
        found["0 output"][3] = value
        assert outside(rule, found) == {"0 output"}


def test_bounds_repeat_and_stay_small() -> None:
    case = case_of("regions")
    first, second = bounds(case), bounds(case)
    for key, exact in first._exact.items():
        assert torch.equal(exact, second._exact[key])
        assert torch.equal(first._allowed[key], second._allowed[key])
        # Far below the FP8 and bf16 errors that a wrong kernel would make.
        if exact.numel():
            assert float(first._allowed[key].max()) < 1e-3 * float(exact.abs().max())


@pytest.mark.parametrize("model", MODELS)
def test_the_primitives_are_the_program(model: str) -> None:
    case = case_of(model)
    case = replace(case, layers=without_casts(case.layers))
    parameters = {name: value.double() for name, value in make_parameters(case).items()}
    slots = parameter_slots(case.layers, 32).values()
    outputs = compile_function(case.layers, 32)(make_input(case, 0).double(), *(parameters[name] for name in slots))
    expected = outputs[0] if isinstance(outputs, tuple) else outputs
    torch.testing.assert_close(bounds(case)._exact["0 output"], expected, rtol=1e-11, atol=1e-11)


def without_casts(layers: tuple[AnyLayer, ...]) -> tuple[AnyLayer, ...]:
    """The same layers at the top level, with nothing that rounds on purpose."""
    plain: list[AnyLayer] = []
    for layer in layers:
        if isinstance(layer, Linear):
            layer = replace(layer, weight_operation="none")
        plain += layer.body if isinstance(layer, Cast) else [layer]
    return tuple(plain)


def test_noise_is_relative_and_spares_views() -> None:
    x = torch.tensor([0.0, 1.0, 1024.0], dtype=torch.float64)
    with MonteCarloArithmetic(2.0**-8, seed=0):
        view, doubled = x.reshape(3, 1), x * 2
    assert torch.equal(view.flatten(), x)
    error = (doubled / (2 * x) - 1).abs()[1:]
    assert bool((error > 0).all())
    assert bool((error <= 2.0**-8).all())
    assert doubled[0] == 0
