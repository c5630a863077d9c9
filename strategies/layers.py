"""Models: sequences of layers whose widths fit by construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from harness.case import (
    GATED_BY,
    Activation,
    ActivationFunction,
    AnyLayer,
    Checkpoint,
    GatedActivation,
    GatedFunction,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
    output_width,
    replace,
)

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
)
PIPELINE_ACTIVATIONS: tuple[ActivationFunction, ...] = (
    "relu",
    "gelu_tanh",
    "silu",
    "squared_relu",
    "quick_gelu",
)
"""Those that te.ops has: its GELU is the tanh form."""

GATED_ACTIVATIONS = tuple(GATED_BY)


def linears(widths: Sequence[int]) -> st.SearchStrategy[Linear]:
    """A linear with or without bias; a frozen weight or bias is rare. Shrinks to ``Linear(64)`` with bias.

    Frozen parameters change which gradients a joint trace has to give, and the keys of Thunder's cache.
    """
    with_bias = st.builds(
        Linear,
        out_features=st.sampled_from(widths),
        bias=st.just(True),
        frozen=st.sampled_from([(), (), (), (), ("bias",), ("weight",), ("weight", "bias")]),
    )
    without_bias = st.builds(
        Linear,
        out_features=st.sampled_from(widths),
        bias=st.just(False),
        frozen=st.sampled_from([(), (), (), ("weight",)]),
    )
    return with_bias | without_bias


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


def models(
    widths: Sequence[int], functions: Sequence[ActivationFunction], *, regions: bool, max_size: int
) -> st.SearchStrategy[Model]:
    """Blocks in a row, as a function from the width of the input to the layers. Shrinks to a single linear.

    A block is a layer, two or three equal linears (the collision that a cache keyed on shapes needs), a linear with
    ReLU behind it (which TE fuses in backward) or, with ``regions``, a residual or a checkpointed region, which hold
    one more level of blocks. A block learns its input width only when the whole list is drawn, so Hypothesis can delete
    any block and still has a valid model.
    """
    linear = linears(widths)
    plain = (
        linear.map(_layer)
        | st.builds(_equal_linears, linear, st.integers(2, 3))
        | linear.map(_with_relu)
        | activations(functions).map(_layer)
        | norms().map(_layer)
        | st.sampled_from(GATED_ACTIVATIONS).map(_gated)
    )
    if not regions:
        return _rows(plain, max_size)
    nested = plain | st.builds(_region, st.just(Checkpoint), _rows(plain, 2))
    regions_too = (
        plain
        | st.builds(_region, st.just(Checkpoint), _rows(nested, 2))
        | st.builds(_region, st.just(Residual), _rows(nested, 2))
    )
    return _rows(regions_too, max_size)


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


def _region(kind: type[Checkpoint] | type[Residual], body: Model) -> Model:
    def build(width: int) -> tuple[AnyLayer, ...]:
        layers = body(width)
        if kind is Residual and output_width(layers, width) != width:
            layers += (Linear(out_features=width),)
        return (kind(body=layers),)

    return build


def unfrozen(layers: tuple[AnyLayer, ...]) -> tuple[AnyLayer, ...]:
    """The same layers with all parameters trainable."""
    result: list[AnyLayer] = []
    for layer in layers:
        if isinstance(layer, Residual | Checkpoint):
            layer = replace(layer, body=unfrozen(layer.body))
        elif isinstance(layer, Linear | LayerNorm | RMSNorm):
            layer = replace(layer, frozen=())
        result.append(layer)
    return tuple(result)
