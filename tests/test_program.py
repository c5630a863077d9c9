"""A model as a Python program: its text, the order of its parameters, and what it computes."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.build import make_parameters
from harness.case import (
    GATED_BY,
    Activation,
    AnyLayer,
    Case,
    Cast,
    Checkpoint,
    Dropout,
    ExtraOutput,
    GatedActivation,
    InPlace,
    Input,
    LayerNorm,
    Linear,
    NoGrad,
    Rearrange,
    Residual,
    RMSNorm,
    walk,
)
from harness.program import (
    ACTIVATION_EXPRESSIONS,
    REARRANGE_EXPRESSIONS,
    compile_function,
    function_source,
    make_module,
    module_source,
    parameter_expressions,
    parameter_slots,
    weight_operation,
)

NESTED: tuple[AnyLayer, ...] = (
    LayerNorm(eps=1e-3, zero_centered_gamma=True),
    Residual(
        body=(
            Linear(out_features=32, bias=False),
            Checkpoint(
                body=(
                    GatedActivation(function="swiglu"),
                    Residual(body=(Activation(function="gelu_tanh"), RMSNorm())),
                ),
            ),
            Linear(out_features=16),
        )
    ),
    Linear(out_features=8),
)

FUNCTION = """\
def model(x, weight_0, bias_0, weight_1_0, weight_1_1_1_1, weight_1_2, bias_1_2, weight_2, bias_2):
    x = F.layer_norm(x, (16,), weight_0 + 1, bias_0, 0.001)
    x_1 = x.clone()
    x_1 = F.linear(x_1, weight_1_0)
    def region_1_1(y):
        gate, value = torch.chunk(y, 2, dim=-1)
        y = F.silu(gate) * value
        y_1 = y.clone()
        y_1 = F.gelu(y_1, approximate="tanh")
        y_1 = F.rms_norm(y_1, (16,), weight_1_1_1_1, 1e-05)
        y = y + y_1
        return y
    x_1 = checkpoint(region_1_1, x_1, use_reentrant=False)
    x_1 = F.linear(x_1, weight_1_2, bias_1_2)
    x = x + x_1
    x = F.linear(x, weight_2, bias_2)
    return x
"""

MODULE = """\
class Model(nn.Module):
    def forward(self, x):
        x = F.layer_norm(x, (16,), self.weight_0 + 1, self.bias_0, 0.001)
        x_1 = x.clone()
        x_1 = F.linear(x_1, self.weight_1_0)
        def region_1_1(y):
            gate, value = torch.chunk(y, 2, dim=-1)
            y = F.silu(gate) * value
            y_1 = y.clone()
            y_1 = F.gelu(y_1, approximate="tanh")
            y_1 = F.rms_norm(y_1, (16,), self.weight_1_1_1_1, 1e-05)
            y = y + y_1
            return y
        x_1 = checkpoint(region_1_1, x_1, use_reentrant=False)
        x_1 = F.linear(x_1, self.weight_1_2, self.bias_1_2)
        x = x + x_1
        x = F.linear(x, self.weight_2, self.bias_2)
        return x
"""

NAMES = ["0.weight", "0.bias", "1.0.weight", "1.1.1.1.weight", "1.2.weight", "1.2.bias", "2.weight", "2.bias"]


def test_source() -> None:
    assert function_source(NESTED, 16) == FUNCTION
    assert module_source(NESTED, 16) == MODULE


def test_parameter_order_is_that_of_the_values() -> None:
    assert parameter_slots(NESTED, 16) == {name: name for name in NAMES}
    case = Case(layers=NESTED, input=Input(features=16))
    assert list(make_parameters(case)) == NAMES
    assert len(set(parameter_expressions(NESTED, 16).values())) == len(NAMES)
    paths = {path for path, _ in walk(NESTED)}
    assert {name.rpartition(".")[0] for name in NAMES} <= paths


def by_hand(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    x = (x - mean) / torch.sqrt(variance + 1e-3) * (1 + p["0.weight"]) + p["0.bias"]
    inner = x @ p["1.0.weight"].T
    inner = inner[..., :16] * torch.sigmoid(inner[..., :16]) * inner[..., 16:]
    normed = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
    inner = inner + normed / torch.sqrt((normed * normed).mean(-1, keepdim=True) + 1e-5) * p["1.1.1.1.weight"]
    x = x + inner @ p["1.2.weight"].T + p["1.2.bias"]
    return x @ p["2.weight"].T + p["2.bias"]


@pytest.mark.parametrize("entry", ["function", "module"])
def test_the_program_computes_what_the_layers_mean(entry: str) -> None:
    case = Case(layers=NESTED, input=Input(features=16))
    parameters = {name: nn.Parameter(value.double()) for name, value in make_parameters(case).items()}
    x = torch.randn(3, 4, 16, dtype=torch.float64, requires_grad=True)
    leaves = [x, *parameters.values()]
    function = compile_function(NESTED, 16)
    output = function(*leaves) if entry == "function" else make_module(NESTED, 16, parameters)(x)
    expected = by_hand(x, parameters)
    gradient = torch.randn_like(expected)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(output, expected, **close)
    for ours, theirs in zip(
        torch.autograd.grad(output, leaves, gradient), torch.autograd.grad(expected, leaves, gradient), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **close)


SHARED: tuple[AnyLayer, ...] = (
    ExtraOutput(),
    Linear(out_features=16, weight_operation="scale"),
    Dropout(probability=0.25),
    Linear(out_features=16, parameters="called_again"),
    InPlace(operation="relu_"),
    Linear(out_features=16, bias=False),
    Rearrange(how="reshape_twice"),
    Linear(out_features=16, bias=False, parameters="tied", weight_operation="cast_and_back"),
    Cast(dtype="bfloat16", body=(RMSNorm(),)),
    NoGrad(body=(Activation(),)),
    ExtraOutput(gradient=False),
)

SHARED_MODULE = """\
class Model(nn.Module):
    def forward(self, x):
        extra_0 = x
        x = x.clone()
        x = F.linear(x, 0.5 * self.layer_0.weight, self.layer_0_weight)
        x = F.dropout(x, 0.25, self.training)
        x = F.linear(x, self.layer_0.weight, self.layer_0_weight)
        x = x.clone()
        x.relu_()
        x = F.linear(x, self.layer_1.weight)
        x = x.reshape(-1).reshape(x.shape)
        x = F.linear(x, self.layer_1_weight.to(torch.bfloat16).type_as(self.layer_1_weight))
        x_8 = x.to(torch.bfloat16)
        x_8 = F.rms_norm(x_8, (16,), self.layer_2.weight, 1e-05)
        x = x_8.type_as(x)
        with torch.no_grad():
            x_9 = x.clone()
            x_9 = F.relu(x_9)
        x = x + x_9
        extra_1 = x
        return x, extra_0, extra_1
"""


def test_shared_parameters_extra_outputs_and_names() -> None:
    assert module_source(SHARED, 16, "colliding") == SHARED_MODULE
    assert function_source(SHARED, 16, "like_proxies").startswith("def model(x, t0, t1, t2, t3, t4):\n")
    assert parameter_slots(SHARED, 16) == {
        "1.weight": "1.weight",
        "1.bias": "1.bias",
        "5.weight": "5.weight",
        "7.weight": "5.weight",
        "8.0.weight": "8.0.weight",
    }
    case = Case(layers=SHARED, input=Input(features=16))
    values = make_parameters(case)
    assert {name: value.dtype for name, value in values.items()} == {
        "1.weight": torch.float32,
        "1.bias": torch.float32,
        "5.weight": torch.float32,
        "8.0.weight": torch.bfloat16,
    }
    module = make_module(SHARED, 16, {n: nn.Parameter(v) for n, v in values.items()}, "nested").eval()
    assert module.layer_5.weight is module.layer_7.weight, "tied"
    x = torch.randn(4, 16)
    output, first, last = module(x)
    assert first is x
    assert last is output


@pytest.mark.parametrize("how", REARRANGE_EXPRESSIONS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 0), (2, 3, 4)])
def test_rearrangements_keep_values_and_shape(how: str, batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 8)
    assert torch.equal(compile_function((Rearrange(how=how),), 8)(x), x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "expected"), [("relu_", [0.0, 2.0]), ("mul_", [-0.5, 1.0]), ("add_", [0.0, 3.0])]
)
def test_operations_in_place_leave_the_input_alone(operation: str, expected: list[float]) -> None:
    x = torch.tensor([-1.0, 2.0])
    assert compile_function((InPlace(operation=operation),), 2)(x).tolist() == expected  # type: ignore[arg-type]
    assert x.tolist() == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("operation", "factor"), [("none", 1), ("scale", 0.5), ("transpose_twice", 1), ("reshape_twice", 1)]
)
def test_operations_on_the_weight(operation: str, factor: float) -> None:
    weight = torch.randn(4, 6)
    assert torch.equal(weight_operation(weight, operation), factor * weight)  # type: ignore[arg-type]
    assert torch.equal(weight_operation(weight, "cast_and_back"), weight.bfloat16().float())


POINTS = [-3.0, -0.5, 0.0, 0.25, 2.0]
BY_HAND = {
    "relu": lambda v: max(v, 0.0),
    "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
    "gelu_tanh": lambda v: v * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "silu": lambda v: v / (1 + math.exp(-v)),
    "squared_relu": lambda v: max(v, 0.0) ** 2,
    "quick_gelu": lambda v: v / (1 + math.exp(-1.702 * v)),
}


@pytest.mark.parametrize("function", ACTIVATION_EXPRESSIONS)
def test_activations(function: str) -> None:
    layer = Activation(function=function)  # type: ignore[arg-type]
    x = torch.tensor(POINTS, dtype=torch.float64)
    expected = torch.tensor([BY_HAND[function](v) for v in POINTS], dtype=torch.float64)
    torch.testing.assert_close(compile_function((layer,), len(POINTS))(x), expected)


@pytest.mark.parametrize("function", GATED_BY)
def test_gated_activations_act_on_the_first_half(function: str) -> None:
    layer = GatedActivation(function=function)  # type: ignore[arg-type]
    values = [1.5, -2.0, 0.5, 3.0, -1.0]
    x = torch.tensor([POINTS + values], dtype=torch.float64)
    gate = BY_HAND[GATED_BY[layer.function]]
    expected = torch.tensor([[gate(a) * b for a, b in zip(POINTS, values, strict=True)]], dtype=torch.float64)
    torch.testing.assert_close(compile_function((layer,), 10)(x), expected)


def test_checkpoint_recomputes_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (Checkpoint(body=(Activation(),)), Activation())
    calls: list[Tensor] = []
    relu = F.relu
    monkeypatch.setattr(F, "relu", lambda x: (calls.append(x), relu(x))[1])
    x = torch.randn(2, 4, requires_grad=True)
    output = compile_function(layers, 4)(x)
    assert len(calls) == 2
    output.sum().backward()
    assert len(calls) == 3, "the checkpointed one runs again, the other does not"


def test_each_program_has_lines_of_its_own() -> None:
    """Thunder's traces quote the source by file name and line."""
    for function in ("relu", "silu", "relu"):
        program = compile_function((Activation(function=function),), 4)  # type: ignore[arg-type]
        assert inspect.getsource(program).splitlines()[1].strip() == f"x = F.{function}(x)"
