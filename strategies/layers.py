"""Models: sequences of layers whose widths fit by construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from hypothesis import strategies as st

from harness.case import (
    GATED_BY,
    Activation,
    ActivationFunction,
    AnyLayer,
    Autocast,
    Cast,
    Checkpoint,
    Dropout,
    Dtype,
    ExtraOutput,
    GatedActivation,
    GatedFunction,
    InPlace,
    LayerNorm,
    Linear,
    NoGrad,
    Rearrange,
    Region,
    Residual,
    RMSNorm,
    WeightOperation,
    output_width,
    replace,
)
from strategies.weights import weighted

ALIGNED_WIDTHS = (64, 32, 16, 48, 128, 96)
"""Multiples of 16, which FP8 GEMMs take. 64 first: the width that shrinking ends at."""

ODD_WIDTHS = (20, 36, 24)
"""Widths that FP8 does not take. 20 and 36: Thunder must leave the linear to torch. 24 as an output width passes TE's
check (a multiple of 8) and is refused by the backward GEMM, in eager TE and under the JIT alike."""

TORCH_ACTIVATIONS: tuple[ActivationFunction, ...] = (
    "relu",
    "gelu_tanh",
    "silu",
    "gelu",
    "squared_relu",
    "quick_gelu",
    "gelu",  # again: pipelines do not have it
)
PIPELINE_ACTIVATIONS: tuple[ActivationFunction, ...] = (
    "relu",
    "gelu_tanh",
    "silu",
    "squared_relu",
    "quick_gelu",
)
"""Those that te.ops has: its GELU is the tanh form."""

WEIGHT_OPERATIONS: tuple[WeightOperation, ...] = ("scale", "transpose_twice", "reshape_twice", "cast_and_back")

GATED_ACTIVATIONS = tuple(GATED_BY)


def linears(widths: Sequence[int]) -> st.SearchStrategy[Linear]:
    """A linear with or without bias; a frozen weight or bias is rare. Shrinks to ``Linear(64)`` with bias.

    Frozen parameters change which gradients a joint trace has to give, and the keys of Thunder's cache. An operation on
    the weight puts a value that the trace computes where TE's executors expect a parameter.
    """
    out_features = st.sampled_from(widths)
    with_bias = st.builds(
        Linear,
        out_features=out_features,
        bias=st.just(True),
        frozen=st.sampled_from([(), (), (), (), ("bias",), ("weight",), ("weight", "bias")]),
    )
    without_bias = st.builds(
        Linear,
        out_features=out_features,
        bias=st.just(False),
        frozen=st.sampled_from([(), (), (), ("weight",)]),
    )
    computed_weight = st.builds(
        Linear,
        out_features=out_features,
        bias=st.booleans(),
        weight_operation=st.sampled_from(WEIGHT_OPERATIONS),
    )
    # Hypothesis prefers fewer choices: the plainest linear must cost none, or models would shrink to an activation.
    plainest = st.just(Linear(out_features=widths[0]))
    return weighted((1, plainest), (2, with_bias), (1, without_bias), (1, computed_weight))


def norms() -> st.SearchStrategy[LayerNorm | RMSNorm]:
    """LayerNorm and RMSNorm with the usual eps values, sometimes zero-centred. Shrinks to ``LayerNorm()``."""
    eps = st.sampled_from([1e-5, 1e-6, 1e-3])
    return st.builds(
        LayerNorm,
        eps=eps,
        zero_centered_gamma=st.booleans(),
        frozen=st.sampled_from([(), (), (), (), ("weight",), ("bias",), ("weight", "bias")]),
    ) | st.builds(
        RMSNorm,
        eps=eps,
        zero_centered_gamma=st.booleans(),
        frozen=st.sampled_from([(), (), (), ("weight",)]),
    )


def activations(functions: Sequence[ActivationFunction]) -> st.SearchStrategy[Activation]:
    """An elementwise activation. Shrinks to ReLU, the one that every implementation computes exactly."""
    return st.sampled_from([Activation(function=function) for function in functions])


def exact_layers() -> st.SearchStrategy[Rearrange | InPlace]:
    """Views, copies and operations in place, which round nothing. Shrinks to a value that is transposed twice.

    Thunder makes operations in place functional and its passes have to keep track of aliases; what TE's kernels are
    given may be non-contiguous.
    """
    return st.sampled_from(
        [
            Rearrange(how="transpose_twice"),
            Rearrange(how="reshape_twice"),
            Rearrange(how="split_and_concatenate"),
            InPlace(operation="relu_"),
            InPlace(operation="mul_"),
            InPlace(operation="add_"),
        ]
    )


def dropouts() -> st.SearchStrategy[Dropout]:
    """Dropout that drops. Shrinks to p = 0.5, whose factor is exact.

    Random operations must be neither merged, dropped, doubled nor computed anew by a pass: recomputed in the backward
    of a checkpointed region, the gradient would belong to other random numbers than the output.
    """
    return st.builds(Dropout, probability=st.sampled_from([0.5, 0.25, 0.1]))


def models(
    widths: Sequence[int], functions: Sequence[ActivationFunction], *, pipeline: bool, max_size: int
) -> st.SearchStrategy[Model]:
    """Blocks in a row, as a function from the width of the input to the layers. Shrinks to a single linear.

    A block is a layer, two or three equal linears (the collision that a cache keyed on shapes needs), or a linear with
    ReLU behind it (which TE fuses in backward). Unless it is for a ``pipeline`` of te.ops, it may also be a linear that
    is used twice, an extra output, or a region (residual, checkpointed, cast, without grad), which holds more blocks. A
    block learns its input width only when the whole list is drawn, so Hypothesis can delete any block and still has a
    valid model.
    """
    if pipeline:
        linear = linears(widths).map(_plain_weight)
        return _rows(_common_blocks(linear, functions), max_size)
    linear = linears(widths)
    plain = weighted(
        (1, _common_blocks(linear, functions)),
        (2, exact_layers().map(_layer)),
        (1, dropouts().map(_layer)),
        (1, st.builds(_linear_used_twice, linear, st.sampled_from(["called_again", "tied"]))),
    )
    # Once more: dropout inside a region that is recomputed is a class of bugs by itself.
    nested = weighted(
        (1, plain),
        (1, dropouts().map(_layer)),
        (1, st.builds(_region, _checkpoints(), _rows(plain, 2))),
    )
    checkpoint = st.builds(_region, _checkpoints(), _rows(nested, 2))
    residual = st.builds(_region, st.just(_residual), _rows(nested, 2))
    blocks = weighted(
        (1, plain),
        (1, st.sampled_from([ExtraOutput(), ExtraOutput(gradient=False)]).map(_layer)),
        (3, checkpoint),
        (3, residual),
        (1, st.builds(_region, st.just(_without_grad), _rows(nested, 2))),
        (1, st.builds(_region, _casts(), _rows(nested, 2))),
        (2, st.builds(_region, autocasts(), _rows(nested, 2))),
    )
    rows = _rows(blocks, max_size)
    return weighted((12, rows), (1, rows.map(_checkpointed)))


def _checkpointed(model: Model) -> Model:
    """Whatever ends in a linear inside a checkpointed region, as scripts do with every block.

    In models of nothing else what forward saves can be counted, so recomputation that is silently off is seen. It
    draws what the model draws: Hypothesis can take the regions away and keep what was in them.
    """

    def build(width: int) -> tuple[AnyLayer, ...]:
        layers: tuple[AnyLayer, ...] = ()
        body: tuple[AnyLayer, ...] = ()
        for layer in model(width):
            body = (*body, layer)
            if isinstance(layer, Region | ExtraOutput | Dropout):
                layers, body = (*layers, *body), ()
            elif isinstance(layer, Linear):
                layers, body = (*layers, Checkpoint(body=body)), ()
        return (*layers, *body)

    return build


def fused_modules(widths: Sequence[int], functions: Sequence[ActivationFunction]) -> st.SearchStrategy[Model]:
    """The layers of a te.LayerNormLinear or te.LayerNormMLP. Shrinks to ``LayerNorm -> Linear(64)``.

    Any parameter may be frozen, and the norm may be an output too.
    """
    linear = linears(widths).map(_plain_weight)
    activation: st.SearchStrategy[AnyLayer] = activations(functions) | st.sampled_from(GATED_ACTIVATIONS).map(
        lambda function: GatedActivation(function=function)
    )
    returned = st.sampled_from([(), (), (ExtraOutput(),)])
    return st.builds(_norm_and_linear, norms(), returned, linear) | st.builds(
        _norm_and_mlp, norms(), returned, linear, activation, linear
    )


def _norm_and_linear(norm: AnyLayer, returned: tuple[AnyLayer, ...], linear: Linear) -> Model:
    return lambda width: (norm, *returned, linear)


def _norm_and_mlp(
    norm: AnyLayer, returned: tuple[AnyLayer, ...], first: Linear, activation: AnyLayer, last: Linear
) -> Model:
    """Both linears with a bias or without, the last one back to the width of the input."""
    if isinstance(activation, GatedActivation):
        first = replace(first, out_features=2 * first.out_features)
    frozen = last.frozen if first.bias else tuple(name for name in last.frozen if name != "bias")

    def build(width: int) -> tuple[AnyLayer, ...]:
        return (norm, *returned, first, activation, replace(last, out_features=width, bias=first.bias, frozen=frozen))

    return build


def _common_blocks(
    linear: st.SearchStrategy[Linear], functions: Sequence[ActivationFunction]
) -> st.SearchStrategy[Model]:
    return weighted(
        (1, linear.map(_layer)),
        (2, st.builds(_equal_linears, linear, st.integers(2, 3))),
        (1, linear.map(_with_relu)),
        (1, activations(functions).map(_layer)),
        (1, norms().map(_layer)),
        (1, st.sampled_from(GATED_ACTIVATIONS).map(_gated)),
    )


Model = Callable[[int], tuple[AnyLayer, ...]]
"""The layers for a given width of the input."""


def _rows(block: st.SearchStrategy[Model], max_size: int) -> st.SearchStrategy[Model]:
    return st.lists(block, min_size=1, max_size=max_size).map(_row)


def _row(blocks: Sequence[Model]) -> Model:
    def build(width: int) -> tuple[AnyLayer, ...]:
        layers: tuple[AnyLayer, ...] = ()
        for block in blocks:
            added = block(width)
            layers += added
            width = output_width(added, width)
        return layers

    return build


def _layer(layer: AnyLayer) -> Model:
    return lambda width: (layer,)


def _with_relu(linear: Linear) -> Model:
    return lambda width: (linear, Activation())


def _equal_linears(linear: Linear, count: int) -> Model:
    return lambda width: (replace(linear, out_features=width),) * count


def _gated(function: GatedFunction) -> Model:
    """A gated activation, or its plain part where the width is too small to be halved again."""

    def build(width: int) -> tuple[AnyLayer, ...]:
        if width % 16 == 0:
            return (GatedActivation(function=function),)
        return (Activation(function=GATED_BY[function]),)

    return build


def _plain_weight(linear: Linear) -> Linear:
    return replace(linear, weight_operation="none")


def _linear_used_twice(linear: Linear, parameters: Literal["called_again", "tied"]) -> Model:
    """A linear from a width to the same width, and again."""

    def build(width: int) -> tuple[AnyLayer, ...]:
        first = replace(linear, out_features=width)
        return first, replace(first, frozen=(), weight_operation="none", parameters=parameters)

    return build


MakeRegion = Callable[[tuple[AnyLayer, ...], int], AnyLayer]
"""From the body and the width of its input to the region."""


def _checkpoints() -> st.SearchStrategy[MakeRegion]:
    return st.just(lambda body, width: Checkpoint(body=body))


def _casts() -> st.SearchStrategy[MakeRegion]:
    dtypes: list[Dtype] = ["float32", "bfloat16"]
    return st.sampled_from(dtypes).map(lambda dtype: lambda body, width: Cast(dtype=dtype, body=body))


def autocasts() -> st.SearchStrategy[MakeRegion]:
    """``torch.autocast`` around a part of the model, or switched off around it. Shrinks to one that is on.

    Thunder keeps a stack of autocast regions while it traces, and casts the operands of a linear before it asks the
    executors for it: states of autocast that outlive their region, and linears that reach TE by another way.
    """
    return st.sampled_from([True, False]).map(lambda on: lambda body, width: Autocast(enabled=on, body=body))


def _residual(body: tuple[AnyLayer, ...], width: int) -> AnyLayer:
    return Residual(body=_back_to(width, body))


def _without_grad(body: tuple[AnyLayer, ...], width: int) -> AnyLayer:
    """A branch that a user takes out of training: a frozen adapter's base, a teacher, a target.

    Thunder tags what it traces inside ``torch.no_grad()``, and the pass that differentiates goes by the tags.
    """
    return NoGrad(body=_back_to(width, body))


def _back_to(width: int, body: tuple[AnyLayer, ...]) -> tuple[AnyLayer, ...]:
    return body if output_width(body, width) == width else (*body, Linear(out_features=width))


def _region(make: MakeRegion, body: Model) -> Model:
    return lambda width: (make(body(width), width),)


def without_transposed(layers: tuple[AnyLayer, ...]) -> tuple[AnyLayer, ...]:
    """The same layers with contiguous values between them: other views in place of transposed ones."""
    result: list[AnyLayer] = []
    for layer in layers:
        if isinstance(layer, Region):
            layer = replace(layer, body=without_transposed(layer.body))
        elif layer == Rearrange(how="transpose_twice"):
            layer = Rearrange(how="reshape_twice")
        result.append(layer)
    return tuple(result)


def all_trainable(layers: tuple[AnyLayer, ...]) -> tuple[AnyLayer, ...]:
    """The same layers with all parameters trainable, and no parameter given as two arguments."""
    result: list[AnyLayer] = []
    for layer in layers:
        if isinstance(layer, Region):
            layer = replace(layer, body=all_trainable(layer.body))
        elif isinstance(layer, Linear | LayerNorm | RMSNorm):
            layer = replace(layer, frozen=())
        if isinstance(layer, Linear) and layer.parameters == "tied":
            layer = replace(layer, parameters="called_again")
        result.append(layer)
    return tuple(result)
