"""Cases: JSON in and out, ids, and what a bad file is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.case import (
    MAX_DEPTH,
    Activation,
    Case,
    CaseError,
    Checkpoint,
    Fuser,
    GatedActivation,
    Input,
    LayerNorm,
    Linear,
    NoGrad,
    Precision,
    Residual,
    Step,
    canonical_json,
    describe,
    load_case,
    output_width,
    parse_case,
    pretty_json,
    replace,
    walk,
    without_grad,
)
from strategies import cases, fuser_cases

ANY_CASE = st.one_of(cases("transformer_engine"), cases("transformer_engine_v1"), cases("torch"), fuser_cases())
LINEAR = {"layer": "linear", "out_features": 64}


def document(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "layers": [LINEAR]} | changes


def refusal(content: Any) -> str:
    """The message with which a document is refused."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(CaseError) as caught:
        parse_case(raw, "here.json")
    return str(caught.value)


@given(case=ANY_CASE)
def test_round_trip(case: Case) -> None:
    for text in (canonical_json(case), pretty_json(case).encode()):
        read = parse_case(text)
        assert read == case
        assert read.id == case.id
        assert canonical_json(read) == canonical_json(case)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


@given(case=ANY_CASE)
def test_canonical_json_is_sorted_and_has_nothing_to_leave_out(case: Case) -> None:
    raw = json.loads(canonical_json(case))
    assert b": " not in canonical_json(case)
    for owner in objects(raw):
        assert list(owner) == sorted(owner)
        for name in [*owner]:
            value = owner.pop(name)
            try:
                without = parse_case(json.dumps(raw).encode())
            except CaseError:
                without = None
            assert without != case, f"{name} is at its default"
            owner[name] = value


def test_ids_are_pinned() -> None:
    """Ids are in the corpus, in reports and in known issues: a change of the encoding must be a decision."""
    case = Case(layers=(Linear(out_features=64),))
    assert canonical_json(case) == b'{"layers":[{"layer":"linear","out_features":64}],"schema":1}'
    assert case.id == "324e259e6b7d"
    other = Case(
        layers=(
            LayerNorm(eps=1e-3, zero_centered_gamma=True),
            Residual(body=(Linear(out_features=32, bias=False, frozen=("weight",)), Linear(out_features=64))),
            Checkpoint(body=(GatedActivation(function="swiglu"),)),
        ),
        input=Input(batch=(2, 8), dtype="bfloat16", distribution="outliers", requires_grad=True),
        precision=Precision(recipe=None),
        steps=(Step(), Step(mode="eval", batch=(8,))),
        seed=7,
    )
    assert other.id == "63fa4a3cebcb"
    assert replace(other, seed=8).id != other.id


def test_load_case(tmp_path: Path) -> None:
    case = Case(layers=(Linear(out_features=64),), seed=3)
    path = tmp_path / "case.json"
    path.write_text(pretty_json(case))
    assert load_case(path) == case
    assert pretty_json(case).endswith("}\n")
    with pytest.raises(CaseError, match=r"absent\.json: cannot be read \(No such file or directory\)\. Check the path"):
        load_case(tmp_path / "absent.json")


REFUSALS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "broken JSON": (b'{"schema": 1,', ("not JSON", "truncated", "version control")),
    "empty file": (b"", ("not JSON",)),
    "NaN": (b'{"schema":1,"layers":[{"layer":"layer_norm","eps":NaN}]}', ("not JSON", "invalid character")),
    "infinity": (b'{"schema":1,"layers":[{"layer":"layer_norm","eps":1e999}]}', ("not JSON", "out of range")),
    "not UTF-8": (b'{"schema":1,"a":"\xff"}', ("UTF-8",)),
    "not an object": ([1], ("here.json: ", "expected an object", "[1]")),
    "no schema": ({"layers": [LINEAR]}, ("here.json: ", 'no "schema"', 'Add "schema": 1')),
    "newer schema": (document(schema=2), ("at $.schema:", "version 2", "Install a newer tefuzz")),
    "older schema": (document(schema=0), ("at $.schema:", "version 0", "Write it anew")),
    "schema as text": (document(schema="1"), ("at $.schema:", 'version "1"')),
    "schema as a truth value": (document(schema=True), ("at $.schema:", "true")),
    "unknown field": (document(sede=3), ("at $:", "unknown field `sede`", "Did you mean `seed`?")),
    "unknown inner field": (
        document(layers=[LINEAR | {"baias": False}]),
        ("at $.layers[0]:", "unknown field `baias`", "Did you mean `bias`?"),
    ),
    "unknown field like no other": (document(zebra=3), ("unknown field `zebra`", "Remove it")),
    "wrong type": (
        document(layers=[LINEAR | {"bias": 1}]),
        ("at $.layers[0].bias:", "Expected `bool`, got `int`", "the value is 1", "Correct the value"),
    ),
    "text for a number": (document(seed="3"), ("at $.seed:", "Expected `int`", 'the value is "3"')),
    "missing field": (
        document(layers=[{"layer": "linear"}]),
        ("at $.layers[0]:", "missing required field `out_features`", '{"layer":"linear"}', "Add it"),
    ),
    "unknown layer": (
        document(layers=[{"layer": "lineer"}]),
        ("at $.layers[0].layer:", 'the value is "lineer"', "Known: activation, autocast, cast, checkpoint", "rms_norm"),
    ),
    "unknown recipe": (
        document(precision={"recipe": {"recipe": "mx"}}),
        ("at $.precision.recipe.recipe:", '"mx"', "Known: delayed_scaling, float8_current_scaling"),
    ),
    "unknown choice": (
        document(steps=[{}, {"mode": "test"}]),
        ("at $.steps[1].mode:", 'the value is "test"', "Known: eval, inference, no_grad, train"),
    ),
    "no layers": (document(layers=[]), ("at $.layers:", "length >= 1", "the value is []")),
    "no steps": (document(steps=[]), ("at $.steps:", "length >= 1", "the value is []")),
    "negative seed": (document(seed=-1), ("at $.seed:", ">= 0", "the value is -1")),
    "huge seed": (document(seed=2**80), ("at $.seed:", str(2**80))),
    "width of nothing": (document(layers=[LINEAR | {"out_features": 0}]), ("at $.layers[0].out_features:", ">= 1")),
    "negative batch": (document(input={"batch": [-1]}), ("at $.input.batch[0]:", ">= 0", "is -1")),
    "nothing to share": (
        document(layers=[LINEAR | {"parameters": "tied"}]),
        ("here.json: ", "layer 0 shares", "there is none", "set parameters to 'own'"),
    ),
    "shared by three": (
        document(layers=[LINEAR, *[LINEAR | {"parameters": "called_again"}] * 2]),
        ("here.json: ", "layer 2 shares", "another one shares them already"),
    ),
    "shared and frozen": (
        document(layers=[LINEAR, LINEAR | {"parameters": "tied", "frozen": ["weight"]}]),
        ("at $.layers[1]:", "frozen where they are its own", "leave out `frozen`"),
    ),
    "output inside a region": (
        document(layers=[{"layer": "checkpoint", "body": [{"layer": "extra_output"}]}]),
        ("here.json: ", "layer 0.0 (extra_output)", "move it to the outermost row"),
    ),
    "backward without grad": (
        document(steps=[{"mode": "no_grad", "backward": "twice"}]),
        ("at $.steps[0]:", "mode no_grad has no backward"),
    ),
    "optimizer before the backward": (
        document(steps=[{"backward": "after_next_step", "optimizer": "sgd"}]),
        ("at $.steps[0]:", "use it in the next step"),
    ),
    "parameters changed before the backward": (
        document(steps=[{"backward": "after_next_step"}, {"before": "load_state_dict"}]),
        ("here.json: ", "step 1 changes the parameters", "the deferred backward of step 0", "'nothing'"),
    ),
    "other parameters frozen before the backward": (
        document(steps=[{"backward": "after_next_step"}, {"trainable": "none"}]),
        ("here.json: ", "step 1 freezes other parameters", "deferred backward", "set its `trainable` to 'all'"),
    ),
    "backward of a step that raises": (
        document(steps=[{"wrong_input": True, "backward": "never"}]),
        ("at $.steps[0]:", "a step whose forward raises has no backward"),
    ),
    "optimizer after an exception": (
        document(steps=[{"backward": "never", "optimizer": "sgd"}]),
        ("at $.steps[0]:", "does not reach its optimizer", "leave out `optimizer`"),
    ),
    "a wrong input that no layer minds": (
        document(layers=[{"layer": "activation"}], steps=[{"wrong_input": True}]),
        ("here.json: ", "no layer minds", "leave out `wrong_input`"),
    ),
    "deep copy of a jitted module": (
        document(steps=[{"before": "deepcopy"}]),
        ("here.json: ", "deep copies are made of fused modules", "leave out `deepcopy`"),
    ),
    "exception inside FSDP": (
        document(jit=None, fuser={"hide_parameters": "fsdp"}, steps=[{"wrong_input": True}]),
        ("here.json: ", "FSDP trains all parameters", "leave out `wrong_input`"),
    ),
    "grad entry that freezes": (
        document(jit={"entry": "grad"}, input={"requires_grad": True}, steps=[{"trainable": "none"}]),
        ("here.json: ", "the entry `grad` returns all gradients", "`trainable`"),
    ),
    "new parameters of a module": (
        document(steps=[{"before": "new_parameters"}]),
        ("here.json: ", "a jitted module keeps its parameter objects", "load_state_dict"),
    ),
    "submodules of a function": (
        document(jit={"entry": "function", "names": "nested"}),
        ("at $.jit:", "names 'nested'", "set entry to 'module'"),
    ),
    "autocast off for v1": (
        document(jit={"executor": "transformer_engine_v1"}, steps=[{"fp8": False}]),
        ("here.json: ", "v1 takes its recipe from thunder.jit", "leave out `fp8`"),
    ),
    "grad entry with a late backward": (
        document(jit={"entry": "grad"}, input={"requires_grad": True}, steps=[{"backward": "twice"}]),
        ("here.json: ", "the entry `grad` returns all gradients", "leave out `backward`"),
    ),
    "grad entry with two outputs": (
        document(jit={"entry": "grad"}, input={"requires_grad": True}, layers=[LINEAR, {"layer": "extra_output"}]),
        ("here.json: ", "layer 1: the entry `grad` takes one output"),
    ),
    "dropout in a pipeline": (
        document(jit=None, fuser={}, layers=[{"layer": "dropout"}]),
        ("here.json: ", "layer 0 (Dropout) has no te.ops counterpart"),
    ),
    "zero eps": (document(layers=[{"layer": "rms_norm", "eps": 0}]), ("at $.layers[0].eps:", "> 0", "is 0")),
    "impossible residual": (
        document(layers=[{"layer": "residual", "body": [{"layer": "linear", "out_features": 32}]}]),
        ("here.json: ", "layer 0 (residual)", "width 32", "end the body with a layer of width 64"),
    ),
    "odd gated width": (
        document(layers=[{"layer": "gated_activation"}], input={"features": 17}),
        ("here.json: ", "layer 0 (reglu)", "odd width of 17"),
    ),
    "both jit and fuser": (
        document(jit={}, fuser={}),
        ("exactly one of `jit`, `fuser` and `fused_module`", "the others must be null"),
    ),
    "neither jit nor fuser": (document(jit=None), ("exactly one of `jit`, `fuser` and `fused_module`",)),
    "region for the fuser": (
        document(jit=None, fuser={}, layers=[LINEAR, {"layer": "residual", "body": []}]),
        ("layer 1 (Residual)", "no te.ops counterpart", "use Linear"),
    ),
    "too large": (
        document(input={"batch": [65536], "features": 8192}),
        ("shape [65536, 8192]", "536870912 elements", "at most 16777216", "use a smaller batch"),
    ),
    "too large in a step": (
        document(steps=[{"batch": [65536, 16]}]),
        ("shape [65536, 16, 64]", "use a smaller batch"),
    ),
    "too many parameters": (
        document(layers=[LINEAR | {"out_features": 8192}] * 4),
        ("up to layer 2 the model has 134766592 parameters", "at most 134217728", "fewer or narrower layers"),
    ),
    "too wide": (
        document(input={"batch": [4096]}, layers=[LINEAR | {"out_features": 8192}]),
        ("a value of shape [4096, 8192]", "narrower layers"),
    ),
    "ten million wide": (
        document(layers=[LINEAR | {"out_features": 10**7}]),
        ("at $.layers[0].out_features:", "<= 8192", "the value is 10000000", "Correct the value"),
    ),
    "too many layers": (document(layers=[LINEAR] * 1025), ("at $.layers:", "length <= 1024")),
    "too many steps": (document(steps=[{}] * 1025), ("at $.steps:", "length <= 1024")),
    "a key twice": (
        b'{"schema": 1, "layers": [{"layer": "linear", "out_features": 64, "bias": true, "bias": false}]}',
        ('the key "bias" occurs twice in one object', "Remove one"),
    ),
    "frozen name of no parameter": (
        document(layers=[LINEAR | {"bias": False, "frozen": ["bias"]}]),
        ("at $.layers[0]:", "frozen names 'bias'", "parameters are weight"),
    ),
    "frozen twice": (
        document(layers=[LINEAR | {"frozen": ["weight", "weight"]}]),
        ("at $.layers[0]:", "each parameter once", "weight, bias"),
    ),
    "frozen in disorder": (
        document(layers=[LINEAR | {"frozen": ["bias", "weight"]}]),
        ("at $.layers[0]:", "in the order weight, bias"),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_files_name_place_value_and_remedy(name: str) -> None:
    content, parts = REFUSALS[name]
    message = refusal(content)
    assert message.startswith("here.json: ")
    assert len(message) < 600, "a report stays readable, however large the file"
    for part in parts:
        assert part in message
    # The rules of our own say all of this themselves.
    assert message.count("at $") <= 1
    assert not ("layer " in message and "at $:" in message)


def nested(depth: int, kind: str) -> bytes:
    inner = b'{"layer":"linear","out_features":64}'
    opening = b'{"layer":"%s","body":[' % kind.encode()
    return b'{"schema":1,"layers":[' + opening * depth + inner + b"]}" * depth + b"]}"


@pytest.mark.parametrize("kind", ["residual", "checkpoint"])
def test_nesting_is_limited(kind: str) -> None:
    assert parse_case(nested(MAX_DEPTH - 1, kind)).layers
    for depth in (MAX_DEPTH, 100, 400, 1000, 100_000):
        assert "nested" in refusal(nested(depth, kind))
    assert "nested too deeply" in refusal(b"[" * 100_000)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["linear", "residual", "layer_norm", "delayed_scaling", "train", "weight", "transformer_engine"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["schema", "layers", "layer", "body", "input", "batch", "frozen", "jit"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(value=json_values)
@example(value={"schema": 1, "a`b": 1})
@example(value={"schema": 10**400})
def test_other_json_values_are_refused(value: Any) -> None:
    with pytest.raises(CaseError, match="<case>: "):
        parse_case(json.dumps(value).encode())


@given(content=st.binary(max_size=60))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(CaseError):
        parse_case(content)


@given(case=ANY_CASE, value=json_values, data=st.data())
def test_a_valid_case_with_one_value_replaced_is_read_or_refused(case: Case, value: Any, data: st.DataObject) -> None:
    raw = json.loads(canonical_json(case))
    owner: Any = raw
    while True:
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(owner[key], dict | list) or data.draw(st.booleans()):
            break
        owner = owner[key]
    owner[key] = value
    try:
        read = parse_case(json.dumps(raw).encode())
    except CaseError:
        return
    assert parse_case(canonical_json(read)) == read


def test_impossible_cases_cannot_be_built_either() -> None:
    linear = Linear(out_features=64)
    with pytest.raises(ValueError, match="exactly one"):
        Case(layers=(linear,), fuser=Fuser())
    with pytest.raises(ValueError, match="schema version 2"):
        Case(layers=(linear,), schema=2)
    with pytest.raises(ValueError, match="width 32"):
        Case(layers=(Residual(body=(Linear(out_features=32),)),))
    with pytest.raises(ValueError, match=r"layer 0 \(no grad\) adds a body of width 32"):
        Case(layers=(NoGrad(body=(Linear(out_features=32),)),))
    valid = Case(layers=(linear,))
    with pytest.raises(ValueError, match="at most"):
        replace(valid, input=Input(batch=(65536,), features=8192))
    with pytest.raises(AttributeError):
        valid.seed = 3  # type: ignore[misc]


def test_what_is_without_grad() -> None:
    inner = NoGrad(body=(Activation(), Checkpoint(body=(Linear(out_features=16),))))
    layers = (Linear(out_features=16), Residual(body=(inner, LayerNorm())), Linear(out_features=16))
    assert without_grad(layers) == {"1.0.0", "1.0.1", "1.0.1.0"}
    assert describe((inner,), 16) == "no grad[relu → checkpoint[Linear(16→16)]]"


def test_the_shape_of_a_model() -> None:
    layers = (
        Linear(out_features=128, bias=False),
        GatedActivation(function="swiglu"),
        Residual(body=(LayerNorm(zero_centered_gamma=True), Checkpoint(body=(Activation(),)))),
        Linear(out_features=32, frozen=("weight",)),
    )
    assert output_width(layers, 64) == 32
    assert output_width(layers[:2], 48) == 64
    assert [path for path, _ in walk(layers)] == ["0", "1", "2", "2.0", "2.1", "2.1.0", "3"]
    assert describe(layers, 48) == (
        "Linear(48→128, no bias) → swiglu → residual[LayerNorm(1+γ) → checkpoint[relu]] → Linear(64→32, frozen weight)"
    )
