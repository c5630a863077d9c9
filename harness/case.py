"""The ``Case``: everything that decides a run, as plain immutable data.

A case is drawn by ``strategies``, judged by ``harness.run`` and kept in the corpus as JSON. It holds no tensor:
tensors are made from a seed and a named distribution, so a case stays small, diffable and safe to load. Nothing in a
file is ever executed; unknown fields, wrong types, foreign schema versions and impossible models are refused.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from harness.schema import MIGRATIONS, SCHEMA_VERSION, upgraded

MAX_ELEMENTS = 2**24
"""Of an input, and of what a layer gives for it. Larger ones find no further bug and would exhaust a small machine."""
MAX_PARAMETERS = 2**27
"""Elements of all weights and biases, for the same reason: half a gigabyte."""
MAX_DEPTH = 16
"""Layers inside layers. A deeper nest finds no further bug and would exhaust the stack of what reads it."""

Dtype = Literal["float32", "bfloat16", "float16"]
Distribution = Literal[
    "normal", "wide_range_rows", "fp8_representable", "outliers", "one_hot_rows", "large", "small", "zeros"
]
ActivationFunction = Literal["relu", "gelu", "gelu_tanh", "silu", "squared_relu", "quick_gelu"]
GatedFunction = Literal["reglu", "geglu", "swiglu", "qgeglu"]
Rearrangement = Literal["transpose_twice", "reshape_twice", "split_and_concatenate"]
InPlaceOperation = Literal["relu_", "mul_", "add_"]
WeightOperation = Literal["none", "scale", "transpose_twice", "reshape_twice", "cast_and_back"]
Layout = Literal["contiguous", "transposed", "strided"]
GradientLayout = Literal["contiguous", "transposed", "strided", "expanded"]
Backward = Literal["now", "twice", "after_next_forward", "after_next_step", "never"]
Trainable = Literal["all", "last_layer", "biases", "none"]
Mode = Literal["train", "no_grad", "inference", "eval"]
ParameterNames = Literal["plain", "nested", "colliding", "like_proxies"]
Hiding = Literal["never", "between_forward_and_backward", "from_start", "fsdp"]
Executor = Literal["transformer_engine", "transformer_engine_v1", "torch"]
Entry = Literal["module", "function", "grad", "thunderfx"]
Transform = Literal["transformer_engine", "constant_folding", "dead_code_elimination"]

T = TypeVar("T")
replace = msgspec.structs.replace
"""``replace(case, seed=3)``: a copy with other values, validated anew."""

Width = Annotated[int, msgspec.Meta(ge=1, le=8192)]
Batch = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=65536)], ...], msgspec.Meta(max_length=3)]
"""Leading dimensions: none for a single vector of features; a 0 makes an empty batch."""
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class CaseError(ValueError):
    """A case, or a file that should hold one, is not valid. The message names place, value and remedy."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all parts of a case: immutable, compared by value, strict when decoded."""


class Layer(Data, frozen=True, kw_only=True, tag_field="layer"):
    """One layer of a model. The width of its input is the width that the layer before it gives."""


class Linear(Layer, frozen=True, kw_only=True, tag="linear"):
    """``y = x W^T + b`` with W of shape [out_features, width of the input]. ``frozen`` parameters need no gradient.

    ``parameters`` other than ``own`` takes those of the nearest earlier linear of equal shape: ``called_again`` is one
    module called twice, ``tied`` are two modules (or two arguments of a function) that hold the same parameter objects.
    ``weight_operation`` is computed on the weight before the linear, in every call.
    """

    out_features: Width
    bias: bool = True
    frozen: tuple[Literal["weight", "bias"], ...] = ()
    parameters: Literal["own", "called_again", "tied"] = "own"
    weight_operation: WeightOperation = "none"

    def __post_init__(self) -> None:
        _check_frozen(self.frozen, ("weight", "bias") if self.bias else ("weight",))
        if self.parameters != "own" and self.frozen:
            raise ValueError("a linear that shares its parameters is frozen where they are its own: leave out `frozen`")


class LayerNorm(Layer, frozen=True, kw_only=True, tag="layer_norm"):
    """LayerNorm over the last dimension. With ``zero_centered_gamma`` the scale is 1 + weight, as in TE."""

    eps: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1e-5
    zero_centered_gamma: bool = False
    frozen: tuple[Literal["weight", "bias"], ...] = ()

    def __post_init__(self) -> None:
        _check_frozen(self.frozen, ("weight", "bias"))


class RMSNorm(Layer, frozen=True, kw_only=True, tag="rms_norm"):
    """RMSNorm over the last dimension. With ``zero_centered_gamma`` the scale is 1 + weight, as in TE."""

    eps: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1e-5
    zero_centered_gamma: bool = False
    frozen: tuple[Literal["weight"], ...] = ()

    def __post_init__(self) -> None:
        _check_frozen(self.frozen, ("weight",))


class Activation(Layer, frozen=True, kw_only=True, tag="activation"):
    """An elementwise activation; the width stays."""

    function: ActivationFunction = "relu"


GATED_BY: dict[GatedFunction, ActivationFunction] = {
    "reglu": "relu",
    "geglu": "gelu_tanh",
    "swiglu": "silu",
    "qgeglu": "quick_gelu",
}
"""The activation of the first half, as in transformer_engine/common/activation."""


class GatedActivation(Layer, frozen=True, kw_only=True, tag="gated_activation"):
    """``act(a) * b`` where a and b are the two halves of the last dimension; the width is halved."""

    function: GatedFunction = "reglu"


class Dropout(Layer, frozen=True, kw_only=True, tag="dropout"):
    """``F.dropout(x, probability)``; a module in evaluation mode does without, a function has no such mode."""

    probability: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5


class Rearrange(Layer, frozen=True, kw_only=True, tag="rearrange"):
    """Views and copies that end in the same values and shape; the result may be non-contiguous."""

    how: Rearrangement = "transpose_twice"


class InPlace(Layer, frozen=True, kw_only=True, tag="in_place"):
    """An operation in place on a clone: ReLU, times 1/2, or plus 1."""

    operation: InPlaceOperation = "relu_"


class ExtraOutput(Layer, frozen=True, kw_only=True, tag="extra_output"):
    """The value at this place is a further output of the model; without ``gradient`` nothing comes back through it.

    As the first layer it makes the input itself an output, as the last one it returns one tensor twice.
    """

    gradient: bool = True


class Residual(Layer, frozen=True, kw_only=True, tag="residual"):
    """``x + body(x)``; the body keeps the width."""

    body: tuple[AnyLayer, ...]


class Checkpoint(Layer, frozen=True, kw_only=True, tag="checkpoint"):
    """``torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)``: the body is recomputed in backward."""

    body: tuple[AnyLayer, ...]


class NoGrad(Layer, frozen=True, kw_only=True, tag="no_grad"):
    """``x + body(x)`` with the body in ``torch.no_grad()``: nothing comes back through it; it keeps the width."""

    body: tuple[AnyLayer, ...]


class Cast(Layer, frozen=True, kw_only=True, tag="cast"):
    """The body computes in ``dtype``, its parameters too; the input is cast to it and the result back."""

    dtype: Dtype = "float32"
    body: tuple[AnyLayer, ...]


class Autocast(Layer, frozen=True, kw_only=True, tag="autocast"):
    """``torch.autocast`` in bfloat16 around the body; the result is cast back to the dtype of the input.

    With ``enabled`` false, autocast is off around the body, whose input and parameters are float32: what a user does
    with a part that needs the precision.
    """

    enabled: bool = True
    body: tuple[AnyLayer, ...]


AnyLayer = (
    Linear
    | LayerNorm
    | RMSNorm
    | Activation
    | GatedActivation
    | Dropout
    | Rearrange
    | InPlace
    | ExtraOutput
    | Residual
    | Checkpoint
    | NoGrad
    | Cast
    | Autocast
)
Region = Residual | Checkpoint | NoGrad | Cast | Autocast
"""Layers that hold other layers."""


class Input(Data, frozen=True, kw_only=True):
    """The model's input, of shape [*batch, features]. Every step draws fresh values from the distribution."""

    batch: Batch = (16,)
    features: Width = 64
    dtype: Dtype = "float32"
    distribution: Distribution = "normal"
    requires_grad: bool = False
    layout: Layout = "contiguous"
    """How the input lies in memory: row by row, column by column, or every second column of a wider tensor."""
    gradient_layout: GradientLayout = "contiguous"
    """The same for the gradient of the output; ``expanded`` is a single 1 for all, as ``output.sum()`` gives it."""


class DelayedScaling(Data, frozen=True, kw_only=True, tag_field="recipe", tag="delayed_scaling"):
    """TE's ``DelayedScaling``: scales follow the amax history of earlier steps."""

    margin: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    format: Literal["HYBRID", "E4M3"] = "HYBRID"
    amax_history_len: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1024
    amax_compute_algo: Literal["max", "most_recent"] = "max"


class Float8CurrentScaling(Data, frozen=True, kw_only=True, tag_field="recipe", tag="float8_current_scaling"):
    """TE's ``Float8CurrentScaling``: scales come from the tensor that is quantised."""

    format: Literal["HYBRID", "E4M3"] = "HYBRID"


Recipe = DelayedScaling | Float8CurrentScaling


class Precision(Data, frozen=True, kw_only=True):
    """The FP8 autocast around every step; ``recipe`` None means none.

    ``recipe_object`` says whether all steps share one recipe object or each step makes an equal, new one.
    """

    recipe: Recipe | None = DelayedScaling()
    recipe_object: Literal["shared", "new_each_step"] = "shared"


class Step(Data, frozen=True, kw_only=True):
    """One step: forward and backward (``train``), or forward alone: without grad (``no_grad``), in inference mode, or
    without grad in evaluation mode (``eval``)."""

    mode: Mode = "train"
    batch: Batch | None = None
    """Leading dimensions of this step's input; None means those of ``Input``."""
    fp8: bool = True
    """Whether the autocast around this step is enabled."""
    recipe: Recipe | None = None
    """Another recipe of the autocast around this step; None means that of ``Precision``."""
    calibrating: bool = False
    """Whether FP8 is off but its amax histories are filled: ``fp8_autocast(enabled=False, calibrating=True)``."""
    first_microbatch: bool | None = None
    """``is_first_microbatch`` of TE's modules: the cast weights are kept from a first microbatch for later ones."""
    torch_autocast: bool = False
    """Whether the forward of this step runs in ``torch.autocast`` with bfloat16."""
    before: Literal["nothing", "load_state_dict", "new_parameters", "deepcopy"] = "nothing"
    """New values for all parameters before the step: copied into them, or as new parameter objects. ``deepcopy`` goes
    on with a deep copy of TE's modules, their FP8 state included."""
    trainable: Trainable = "all"
    """Which of the parameters that are not ``frozen`` need a gradient in this step: all, those of the last layer that
    has any, biases, or none."""
    wrong_input: bool = False
    """Whether the input is twice as wide as the model takes: the forward raises, the caller catches it and goes on."""
    gradients: Literal["none", "zeroed", "accumulated"] = "none"
    """Parameter gradients before the step: set to None, set to zero, or left to be added to."""
    backward: Backward = "now"
    """When backward runs: after the forward; twice, with ``retain_graph``; after the forward of the next step; when
    that step has run its own; or never, since something raised between the two. The last step does not wait."""
    optimizer: Literal["none", "sgd", "adamw"] = "none"
    """The optimizer that changes the parameters after the step."""

    def __post_init__(self) -> None:
        if self.mode != "train" and (self.backward != "now" or self.optimizer != "none"):
            raise ValueError(f"a step in mode {self.mode} has no backward: leave out `backward` and `optimizer`")
        if self.deferred and self.optimizer != "none":
            raise ValueError("an optimizer would change what the deferred backward needs: use it in the next step")
        if self.wrong_input and self.backward != "now":
            raise ValueError("a step whose forward raises has no backward: leave out `backward`")
        if (self.wrong_input or self.backward == "never") and self.optimizer != "none":
            raise ValueError("a step that something raises in does not reach its optimizer: leave out `optimizer`")

    @property
    def deferred(self) -> bool:
        """Whether backward waits for the next step."""
        return self.backward in ("after_next_forward", "after_next_step")


class Jit(Data, frozen=True, kw_only=True):
    """How ``thunder.jit`` is called: the executor tried first, its cache mode and what is compiled.

    The entry ``grad`` is ``thunder.core.transforms.grad(thunder.jit(function))``: it returns the gradients of the sum
    of the output with respect to the input and all parameters. ``thunderfx`` is ``thunder.dynamo.thunderfx(function)``:
    TorchDynamo takes the program apart, and Thunder compiles each graph that comes out of it.

    ``names`` are those of the parameters: attributes of the model (``plain``), of submodules (``nested``), of both such
    that a path with dots replaced by underscores is the name of another parameter (``colliding``), or names like those
    of Thunder's own proxies (``like_proxies``).

    ``transforms`` are those that the user passes, in their order. None of them changes a result. Executor v2 needs its
    own, ``transformer_engine``, which comes last where it is not named.
    """

    executor: Executor = "transformer_engine"
    cache: Literal["constant values", "no caching"] = "constant values"
    entry: Entry = "module"
    names: ParameterNames = "plain"
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        if "transformer_engine" in self.transforms and self.executor != "transformer_engine":
            raise ValueError(f"executor {self.executor!r} has no transform of its own: leave it out of `transforms`")
        if len(set(self.transforms)) < len(self.transforms):
            raise ValueError("a transform stands in `transforms` twice: leave one out")
        if self.names in ("nested", "colliding") and self.entry != "module":
            raise ValueError(f"names {self.names!r} are those of submodules: set entry to 'module'")

    @property
    def all_transforms(self) -> tuple[Transform, ...]:
        """With that of the executor."""
        if self.executor != "transformer_engine" or "transformer_engine" in self.transforms:
            return self.transforms
        return (*self.transforms, "transformer_engine")

    @property
    def compiles_each_step(self) -> bool:
        """Whether no specialisation is kept.

        The entry ``grad`` builds the jitted function anew and drops its cache mode (``add_transform`` in
        thunder/core/transforms.py).
        """
        return self.cache == "no caching" and self.entry != "grad"


class Fuser(Data, frozen=True, kw_only=True):
    """Instead of the JIT, TE's operation fuser is under test: one ``te.ops.Sequential`` against its ops one by one.

    ``hide_parameters`` takes the parameters away from ``module.parameters()`` as FSDP does; with ``fsdp`` real FSDP1
    does it, in one process.
    """

    hide_parameters: Hiding = "between_forward_and_backward"


class FusedModule(Data, frozen=True, kw_only=True):
    """Instead of the JIT, ``te.LayerNormLinear`` or ``te.LayerNormMLP`` is under test, against its parts one by one.

    The layers are a norm and a linear, and for the MLP an activation and a linear back to the width of the input. An
    extra output between norm and linear is what ``return_layernorm_output`` returns.
    """

    fp8_weights: bool = False
    """Whether the modules are made in ``quantized_model_init``: their weights are FP8 tensors."""


class Case(Data, frozen=True, kw_only=True):
    """A model, its input, its precision, its training schedule and the subject under test.

    Exactly one subject is tested: the JIT (``jit``), or when ``jit`` is null TE's operation fuser (``fuser``) or a
    fused module of TE (``fused_module``).
    """

    schema: int = SCHEMA_VERSION
    layers: Annotated[tuple[AnyLayer, ...], msgspec.Meta(min_length=1, max_length=1024)]
    input: Input = Input()
    precision: Precision = Precision()
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1, max_length=1024)] = (Step(),)
    jit: Jit | None = Jit()
    fuser: Fuser | None = None
    fused_module: FusedModule | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise ValueError(f"schema version {self.schema}; this version of tefuzz reads {SCHEMA_VERSION}")
        if sum(subject is not None for subject in (self.jit, self.fuser, self.fused_module)) != 1:
            raise ValueError(
                "exactly one of `jit`, `fuser` and `fused_module` must be given, and the others must be null"
            )
        _check_depth(self.layers)
        output_width(self.layers, self.input.features)
        parameter_owners(self.layers, self.input.features)
        _check_size(self)
        _check_extra_outputs(self.layers)
        _check_steps(self.steps)
        _check_surprises(self)
        _check_recipes(self)
        if self.fuser is not None:
            _check_fuser(self)
        if self.jit is not None:
            _check_jit(self, self.jit)
        _check_fused_module(self)

    @property
    def id(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(canonical_json(self)).hexdigest()[:12]


def output_width(layers: tuple[AnyLayer, ...], width: int) -> int:
    """The width that ``layers`` give for an input of ``width``; ValueError when the model is impossible."""
    for index, layer in enumerate(layers):
        match layer:
            case Linear():
                width = layer.out_features
            case GatedActivation():
                if width % 2:
                    raise ValueError(f"layer {index} ({layer.function}) halves an odd width of {width}")
                width //= 2
            case Residual() | NoGrad():
                inner = output_width(layer.body, width)
                if inner != width:
                    raise ValueError(
                        f"layer {index} ({_region_name(layer)}) adds a body of width {inner} to its input of width "
                        f"{width}: end the body with a layer of width {width}"
                    )
            case Checkpoint() | Cast() | Autocast():
                width = output_width(layer.body, width)
            case _:
                pass
    return width


def _region_name(region: Residual | Checkpoint | NoGrad) -> str:
    return "no grad" if isinstance(region, NoGrad) else type(region).__name__.lower()


def parameter_owners(layers: tuple[AnyLayer, ...], width: int) -> dict[str, str]:
    """Path of each linear that shares its parameters -> path of the linear that owns them.

    ValueError when there is no earlier linear of equal shape, or when two linears already use its parameters: a sum of
    three gradients would depend on their order, which eager and JIT may choose differently.
    """
    owners: dict[tuple[Any, ...], str] = {}
    shared: dict[str, str] = {}
    for path, layer, inputs, dtype in linears(layers, width):
        form = (inputs, layer.out_features, layer.bias, dtype)
        if layer.parameters == "own":
            owners[form] = path
        elif form not in owners:
            raise ValueError(
                f"layer {path} shares the parameters of an earlier linear from {inputs} to {layer.out_features}, but "
                "there is none (or another one shares them already): set parameters to 'own'"
            )
        else:
            shared[path] = owners.pop(form)
    return shared


def executed(
    layers: tuple[AnyLayer, ...], width: int, dtype: Dtype | None = None, prefix: str = ""
) -> Iterator[tuple[str, AnyLayer, int, Dtype | None]]:
    """Path, layer, input width and dtype of every layer that holds no others, in order of execution.

    ``dtype`` is that of the input (None: not asked for); inside a cast it is the cast's, where autocast is off float32.
    """
    for index, layer in enumerate(layers):
        if isinstance(layer, Region):
            yield from executed(layer.body, width, _dtype_inside(layer, dtype), f"{prefix}{index}.")
        else:
            yield f"{prefix}{index}", layer, width, dtype
        width = output_width((layer,), width)


def _dtype_inside(region: Region, outside: Dtype | None) -> Dtype | None:
    """The dtype of the parameters inside a region."""
    match region:
        case Cast():
            return region.dtype
        case Autocast(enabled=False):
            return "float32"
        case _:
            return outside


def in_autocast(layers: tuple[AnyLayer, ...], active: bool, prefix: str = "") -> Iterator[str]:
    """Paths of the layers that hold no others and run in ``torch.autocast``, which is ``active`` around them or not."""
    for index, layer in enumerate(layers):
        if isinstance(layer, Region):
            inner = layer.enabled if isinstance(layer, Autocast) else active
            yield from in_autocast(layer.body, inner, f"{prefix}{index}.")
        elif active:
            yield f"{prefix}{index}"


def without_grad(layers: tuple[AnyLayer, ...]) -> frozenset[str]:
    """Paths of the layers inside ``torch.no_grad()``."""
    outermost = [path for path, layer in walk(layers) if isinstance(layer, NoGrad)]
    return frozenset(path for path, _ in walk(layers) if any(path.startswith(f"{outer}.") for outer in outermost))


def linears(layers: tuple[AnyLayer, ...], width: int) -> Iterator[tuple[str, Linear, int, Dtype | None]]:
    """The linears of ``executed``; their dtype is None outside casts and parts without autocast."""
    for path, layer, inputs, dtype in executed(layers, width):
        if isinstance(layer, Linear):
            yield path, layer, inputs, dtype


def walk(layers: tuple[AnyLayer, ...], path: str = "") -> Iterator[tuple[str, AnyLayer]]:
    """Every layer, outer before inner, with its dotted path: ``0``, ``1``, ``1.0``..."""
    for index, layer in enumerate(layers):
        here = f"{path}{index}"
        yield here, layer
        if isinstance(layer, Region):
            yield from walk(layer.body, f"{here}.")


def describe(layers: tuple[AnyLayer, ...], width: int) -> str:
    """The model on one line, for example ``Linear(64→64) → relu → residual[...]``."""
    parts = []
    for layer in layers:
        after = output_width((layer,), width)
        match layer:
            case Linear():
                bias = "" if layer.bias else ", no bias"
                frozen = f", frozen {'+'.join(layer.frozen)}" if layer.frozen else ""
                shared = "" if layer.parameters == "own" else f", {layer.parameters.replace('_', ' ')}"
                weight = "" if layer.weight_operation == "none" else f", weight {layer.weight_operation}"
                parts.append(f"Linear({width}→{after}{bias}{frozen}{shared}{weight})")
            case LayerNorm() | RMSNorm():
                parts.append(type(layer).__name__ + ("(1+γ)" if layer.zero_centered_gamma else ""))
            case Activation() | GatedActivation():
                parts.append(layer.function)
            case Dropout():
                parts.append(f"dropout({layer.probability:g})")
            case Rearrange():
                parts.append(layer.how)
            case InPlace():
                parts.append(layer.operation)
            case ExtraOutput():
                parts.append("output" if layer.gradient else "output without gradient")
            case Residual() | Checkpoint() | NoGrad():
                parts.append(f"{_region_name(layer)}[{describe(layer.body, width)}]")
            case Cast():
                parts.append(f"in {layer.dtype}[{describe(layer.body, width)}]")
            case Autocast():
                switch = "autocast" if layer.enabled else "autocast off"
                parts.append(f"{switch}[{describe(layer.body, width)}]")
        width = after
    return " → ".join(parts)


def canonical_json(case: Case) -> bytes:
    """Canonical JSON: sorted keys, no white space, fields at their default left out (except ``schema``).

    Leaving defaults out keeps the ids of old cases when a later version adds a field.
    """
    return msgspec.json.encode(_without_defaults(case), order="sorted")


def pretty_json(case: Case) -> str:
    """The canonical content, indented for people and for diffs, with a final newline."""
    return msgspec.json.format(canonical_json(case), indent=2).decode() + "\n"


def parse_case(content: bytes, source: str = "<case>") -> Case:
    """Decode and validate a case; ``CaseError`` names the source, the JSON path, the value and the remedy."""
    return decode(content, Case, source, prepare=upgraded_case)


def load_case(path: Path) -> Case:
    """Read one case from a file. ``CaseError`` when it cannot be read or is not valid."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    return parse_case(content, str(path))


def decode(content: bytes, kind: type[T], source: str, prepare: Callable[[Any, str], Any] | None = None) -> T:
    """Decode strict JSON into ``kind``; every error becomes a ``CaseError`` that says how to mend the file.

    ``prepare`` turns the plain data of an older version into that of the present one.
    """
    try:
        raw = msgspec.json.decode(content)
        # msgspec takes the last one: the file would not be what its reader thinks it is.
        json.loads(content, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKeyError as error:
        raise CaseError(f"{source}: the key {error} occurs twice in one object. Remove one of them.") from error
    except msgspec.DecodeError as error:
        raise CaseError(f"{source}: not JSON ({error}). Restore the file from version control.") from error
    except RecursionError as error:
        raise CaseError(_too_deep(source)) from error
    except UnicodeDecodeError as error:
        raise CaseError(f"{source}: not UTF-8 text ({error.reason}). This is not a file of tefuzz.") from error
    if prepare is not None:
        raw = prepare(raw, source)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise CaseError(_explain(error, raw, kind, source)) from error
    except RecursionError as error:
        raise CaseError(_too_deep(source)) from error


class _DuplicateKeyError(Exception):
    """An object of a file has a key twice."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise _DuplicateKeyError(_show(key))
        keys.add(key)


def _too_deep(source: str) -> str:
    return f"{source}: nested too deeply. No model needs that: remove the inner layers."


def upgraded_case(raw: Any, source: str) -> Any:
    """The plain data of a case, in the present version of the schema; ``CaseError`` for a version that is not read."""
    if not isinstance(raw, dict):
        raise CaseError(f"{source}: expected an object that describes a case, got {_show(raw)}.")
    version = raw.get("schema")
    if version is None:
        raise CaseError(f'{source}: there is no "schema". Add "schema": {SCHEMA_VERSION} if this is a case.')
    if version != SCHEMA_VERSION and not (type(version) is int and version in MIGRATIONS):
        remedy = "Install a newer tefuzz" if isinstance(version, int) and version > SCHEMA_VERSION else "Write it anew"
        raise CaseError(
            f"{source}: at $.schema: version {_show(version)} is not version {SCHEMA_VERSION}, which this tefuzz "
            f"reads. {remedy}."
        )
    try:
        return upgraded(raw)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CaseError(
            f"{source}: at $: not a valid case of schema version {_show(version)} ({type(error).__name__}: {error}). "
            "Restore the file from version control."
        ) from error


BY_MSGSPEC = ("Expected", "Invalid", "Object")
"""How messages of msgspec begin."""


def _explain(error: msgspec.ValidationError, raw: Any, kind: type, source: str) -> str:
    text, _, path = str(error).partition(" - at `")
    path = path.rstrip("`") or "$"
    if not text.startswith(BY_MSGSPEC):  # a rule of our own, which names place, value and remedy itself
        return f"{source}: {text}." if path == "$" else f"{source}: at {path}: {text}."
    remedy = "Correct the value."
    if text.startswith(("Invalid value", "Invalid enum value")) and (
        known := _known_values(kind, path.rsplit(".", 1)[-1])
    ):
        remedy = f"Known: {', '.join(known)}."
    elif text.startswith("Object missing required field"):
        remedy = "Add it."
    unknown = re.search(r"unknown field `(.+?)`", text)
    if unknown:
        close = difflib.get_close_matches(unknown[1], sorted(_all_field_names(kind) - {unknown[1]}), n=1)
        remedy = f"Did you mean `{close[0]}`?" if close else "Remove it."
        return f"{source}: at {path}: {text}. {remedy}"
    return f"{source}: at {path}: {text}; the value is {_show(_value_at(raw, path))}. {remedy}"


def _value_at(raw: Any, path: str) -> Any:
    value = raw
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    return value


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _known_values(kind: type, field: str) -> list[str]:
    """The strings that a field of this name may hold anywhere inside ``kind``; none when it is not a choice."""
    components = msgspec.json.schema_components([kind])[1].values()
    properties = [schema["properties"][field] for schema in components if field in schema.get("properties", {})]
    return sorted({value for entry in properties for value in entry.get("enum", [])})


def _all_field_names(kind: type) -> set[str]:
    """Names of all fields of a struct and of the structs inside it."""
    names: set[str] = set()
    for schema in msgspec.json.schema_components([kind])[1].values():
        names |= set(schema.get("properties", {}))
    return names


def _check_depth(layers: tuple[AnyLayer, ...]) -> None:
    depth = 0
    while layers:  # a loop: recursion is what must not happen here
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"layers are nested more than {MAX_DEPTH} deep: remove the inner ones")
        layers = tuple(inner for layer in layers if isinstance(layer, Region) for inner in layer.body)


def _check_size(case: Case) -> None:
    widest, parameters = case.input.features, 0
    for path, layer, width, _ in executed(case.layers, case.input.features):
        if isinstance(layer, Linear) and layer.parameters == "own":
            parameters += layer.out_features * (width + layer.bias)
        if parameters > MAX_PARAMETERS:
            raise ValueError(
                f"up to layer {path} the model has {parameters} parameters; at most {MAX_PARAMETERS} are allowed: "
                "use fewer or narrower layers"
            )
        widest = max(widest, output_width((layer,), width))
    for batch in {case.input.batch, *(step.batch for step in case.steps if step.batch is not None)}:
        if (elements := math.prod(batch) * widest) > MAX_ELEMENTS:
            raise ValueError(
                f"a value of shape {[*batch, widest]} has {elements} elements; "
                f"at most {MAX_ELEMENTS} are allowed: use a smaller batch or narrower layers"
            )


def _check_extra_outputs(layers: tuple[AnyLayer, ...]) -> None:
    for path, layer in walk(layers):
        if isinstance(layer, ExtraOutput) and "." in path:
            raise ValueError(f"layer {path} (extra_output) is inside a region: move it to the outermost row")


def _check_steps(steps: tuple[Step, ...]) -> None:
    for index, (step, after) in enumerate(pairwise(steps)):
        if step.deferred and after.before != "nothing":
            raise ValueError(
                f"step {index + 1} changes the parameters ({after.before}) that the deferred backward of step {index} "
                "needs: set its `before` to 'nothing'"
            )
        if step.deferred and after.trainable != step.trainable:
            raise ValueError(
                f"step {index + 1} freezes other parameters than step {index}, whose deferred backward is yet to come: "
                f"set its `trainable` to {step.trainable!r}"
            )


def _check_surprises(case: Case) -> None:
    """What a step may do to its subject: not all of them survive everything, by design."""
    steps, fuser = case.steps, case.fuser
    if any(step.wrong_input for step in steps) and not any(
        isinstance(layer, Linear | LayerNorm | RMSNorm) for _, layer in walk(case.layers)
    ):
        raise ValueError("no layer minds an input that is too wide: leave out `wrong_input`, or use a linear or norm")
    hides = fuser is not None and fuser.hide_parameters in ("between_forward_and_backward", "from_start")
    if any(step.before == "deepcopy" for step in steps) and not (hides or case.fused_module):
        raise ValueError(
            "deep copies are made of fused modules and of pipelines with hidden parameters: leave out `deepcopy`"
        )
    if (
        fuser is not None
        and fuser.hide_parameters == "fsdp"
        and any(step.wrong_input or step.backward == "never" or step.trainable != "all" for step in steps)
    ):
        raise ValueError(
            "FSDP trains all parameters, and does not go on after an exception: leave out `wrong_input`, `trainable` "
            "and a backward that never runs"
        )


def _check_recipes(case: Case) -> None:
    for index, step in enumerate(case.steps):
        if step.recipe is not None and (case.precision.recipe is None or not step.fp8):
            raise ValueError(f"step {index} has a recipe of its own, but no FP8: leave out its `recipe`")


def _check_jit(case: Case, jit: Jit) -> None:
    if jit.entry == "grad":
        _check_grad_entry(case)
    if jit.entry == "module" and any(step.before == "new_parameters" for step in case.steps):
        raise ValueError("a jitted module keeps its parameter objects: use load_state_dict, or another entry")
    if jit.executor == "transformer_engine_v1" and any(not step.fp8 or step.recipe for step in case.steps):
        raise ValueError(
            "executor v1 takes its recipe from thunder.jit, not from autocast: leave out `fp8` and `recipe` of steps"
        )


def _check_grad_entry(case: Case) -> None:
    if not case.input.requires_grad:
        raise ValueError("the entry `grad` differentiates the input too: set input.requires_grad to true")
    if any(step.mode != "train" for step in case.steps):
        raise ValueError("the entry `grad` has training steps only: leave out the others")
    if frozen := [path for path, layer in walk(case.layers) if getattr(layer, "frozen", ())]:
        raise ValueError(f"the entry `grad` differentiates all parameters: nothing may be frozen in layer {frozen[0]}")
    if any(step.backward != "now" or step.gradients != "none" or step.trainable != "all" for step in case.steps):
        raise ValueError(
            "the entry `grad` returns all gradients: leave out `backward`, `gradients` and `trainable` of the steps"
        )
    for path, layer in walk(case.layers):
        if isinstance(layer, ExtraOutput) or (isinstance(layer, Linear) and layer.parameters == "tied"):
            raise ValueError(
                f"layer {path}: the entry `grad` takes one output and gives a gradient for each argument: leave out "
                "extra outputs and tied parameters"
            )


def _check_fuser(case: Case) -> None:
    for path, layer in walk(case.layers):
        if not isinstance(layer, Linear | LayerNorm | RMSNorm | Activation | GatedActivation) or (
            isinstance(layer, Activation) and layer.function == "gelu"
        ):
            raise ValueError(
                f"layer {path} ({type(layer).__name__}) has no te.ops counterpart in a pipeline: "
                "use Linear, norms and activations (gelu_tanh instead of gelu)"
            )
        if isinstance(layer, Linear) and (layer.parameters != "own" or layer.weight_operation != "none"):
            raise ValueError(f"layer {path}: an operation of te.ops has its own weight, as it is: leave out the others")
    if any(step.before == "new_parameters" for step in case.steps):
        raise ValueError("a te.ops pipeline keeps its parameter objects: use load_state_dict")
    if any(step.torch_autocast for step in case.steps):
        raise ValueError("the operations of a te.ops pipeline run outside torch.autocast: leave out `torch_autocast`")


def _check_fused_module(case: Case) -> None:
    if case.fused_module is None:
        if any(step.calibrating or step.first_microbatch is not None for step in case.steps):
            raise ValueError("only a fused module calibrates and has microbatches: leave both out of the steps")
        return
    parts = [layer for layer in case.layers if not isinstance(layer, ExtraOutput)]
    kinds: list[tuple[type[Layer], ...]] = [(LayerNorm, RMSNorm), (Linear,), (Activation, GatedActivation), (Linear,)]
    if len(parts) not in (2, 4) or not all(map(isinstance, parts, kinds)):
        raise ValueError(
            "a fused module is a norm and a linear, and for an MLP an activation and a linear: no other layers"
        )
    if parts != list(case.layers) and case.layers != (parts[0], case.layers[1], *parts[1:]):
        raise ValueError("a fused module has one extra output at most, right after its norm")
    first, *others = [layer for layer in parts if isinstance(layer, Linear)]
    if any(linear.weight_operation != "none" or linear.parameters != "own" for linear in (first, *others)):
        raise ValueError("a fused module has its own weights, as they are: leave out the other options of its linears")
    if others and (others[0].bias != first.bias or others[0].out_features != case.input.features):
        raise ValueError("both linears of an MLP have a bias or neither, and the second gives the width of the input")
    if any(isinstance(layer, Activation) and layer.function == "gelu" for layer in parts):
        raise ValueError("TE's GELU is the tanh form: use gelu_tanh")
    if any(step.torch_autocast or step.before == "new_parameters" for step in case.steps):
        raise ValueError("a fused module keeps its parameter objects and runs outside torch.autocast: leave both out")
    if any(step.calibrating and not (step.fp8 and case.precision.recipe) for step in case.steps):
        raise ValueError("a step that calibrates needs a recipe, and `fp8` as it is")
    if case.fused_module.fp8_weights and case.precision.recipe is None:
        raise ValueError("FP8 weights need a recipe")


def _check_frozen(frozen: tuple[str, ...], parameters: tuple[str, ...]) -> None:
    if unknown := [name for name in frozen if name not in parameters]:
        raise ValueError(f"frozen names {unknown[0]!r}, but the layer's parameters are {', '.join(parameters)}")
    if len(set(frozen)) != len(frozen) or tuple(sorted(frozen, key=parameters.index)) != frozen:
        raise ValueError(f"frozen must list each parameter once, in the order {', '.join(parameters)}")


def _without_defaults(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, Data):
        return value
    result = {}
    config = type(value).__struct_config__
    if config.tag is not None:
        result[config.tag_field] = config.tag
    for field in _fields(type(value)):
        item = getattr(value, field.name)
        if field.name == "schema" or field.required or item != field.default:
            result[field.encode_name] = _without_defaults(item)
    return result


@cache
def _fields(kind: type[Data]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a struct; msgspec evaluates all annotations anew each time it is asked."""
    return msgspec.structs.fields(kind)
