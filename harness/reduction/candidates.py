"""Simpler forms of a case, the boldest first: delta debugging over the structure of its canonical JSON.

The canonical JSON leaves defaults out, so a field is made plain by deleting it, and a list shortened by deleting
items; a layer or a field that a later version adds is reduced too. What is no valid case is repaired or passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harness.case import (
    AnyLayer,
    Case,
    GatedActivation,
    Input,
    Linear,
    NoGrad,
    Region,
    Residual,
    canonical_json,
    output_width,
    replace,
    walk,
)

Raw = dict[str, Any]
Position = tuple[int, ...]
"""Where a candidate stands in the order of all: the number of its pass, and its place in that."""
Pass = Callable[[Raw], Iterator[tuple[Position, Raw]]]

TAGS = {"layer", "recipe", "schema"}
"""Keys that say what an object is."""
PLAIN_LAYER = {"layer": "activation"}
PLAIN_WIDTH = Input().features
SMALL_INTEGERS = (0, 1, 8, 16, 64)
REGION_BODY = "body"


def candidates(case: Case, first: Position = ()) -> Iterator[tuple[Position, Case]]:
    """Valid cases of lower ``cost`` from position ``first`` on, in ascending order of their positions."""
    raw: Raw = msgspec.json.decode(canonical_json(case))
    limit = cost(case)
    for number, simplified in enumerate(PASSES):
        if first and number < first[0]:
            continue
        for place, changed in simplified(raw):
            position = (number, *place)
            if position >= first and (candidate := _repaired(changed)) is not None and cost(candidate) < limit:
                yield position, candidate


def cost(case: Case) -> tuple[int, ...]:
    """What is reduced: layers, then steps, layers that are neither linear nor ReLU, things said, and numbers."""
    layers = [msgspec.to_builtins(layer)["layer"] for _, layer in walk(case.layers)]
    unusual = sum(kind not in ("linear", PLAIN_LAYER["layer"]) for kind in layers)
    entries = [
        part[key]
        for part in _containers(msgspec.json.decode(canonical_json(case)))
        for key in _keys(part)
        if not _is_tag(part, key)
    ]
    return len(layers), len(case.steps), unusual, len(entries), sum(value for value in entries if type(value) is int)


# --- Passes: each gives changed copies of a case, in ascending order of their place. ---


def plain_surroundings(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """Everything around the model at its default, then one part after the other."""
    subjects = ("jit", "fuser", "fused_module")
    parts = [key for key in ("steps", "input", "precision", "seed", *subjects) if raw.get(key) is not None]
    for index, chosen in enumerate([parts, *([part] for part in parts)]):
        changed = _copy(raw)
        for part in chosen:
            if part in subjects:  # without its executor it would be another subject
                changed[part] = {key: value for key, value in changed[part].items() if key == "executor"}
            else:
                del changed[part]
        yield (index,), changed


def fewer_steps(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """Runs of steps left out."""
    return _shortened(raw, lambda changed: [changed["steps"]] if "steps" in changed else [])


def fewer_layers(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """Runs of layers left out, in the outermost row and in regions."""
    return _shortened(raw, _rows)


def shorter_lists(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """Items left out of the other lists: dimensions, frozen parameters."""
    return _shortened(raw, lambda changed: [items for items in _lists(changed) if _is_flat(items)])


def unwrapped_regions(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """The layers of a region in its place."""
    for number, row in enumerate(_rows(raw)):
        for index, layer in enumerate(row):
            if REGION_BODY in layer:
                changed = _copy(raw)
                _rows(changed)[number][index : index + 1] = _copy(layer[REGION_BODY])
                yield (number, index), changed


def plain_objects(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """One layer, step or other part with all its fields at their defaults."""
    for number, part in enumerate(_objects(raw)):
        if sum(_is_optional(part, key) for key in part) > 1:
            changed = _copy(raw)
            target = _objects(changed)[number]
            for key in [key for key in target if _is_optional(target, key)]:
                del target[key]
            yield (number,), changed


def plain_fields_everywhere(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """One field at its default in all layers and steps."""
    names = sorted({key for part in _objects(raw) for key in part if _is_optional(part, key)})
    for index, name in enumerate(names):
        changed = _copy(raw)
        owners = [part for part in _objects(changed) if name in part]
        if len(owners) > 1:
            for part in owners:
                del part[name]
            yield (index,), changed


def plain_fields(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """One field at its default."""
    for number, part in enumerate(_objects(raw)):
        for index, key in enumerate(sorted(part)):
            if _is_optional(part, key):
                changed = _copy(raw)
                del _objects(changed)[number][key]
                yield (number, index), changed


def one_width(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """All linears as wide as the input, and that as wide as by default."""
    for index, keeps_input in enumerate((False, True)):
        changed = _copy(raw)
        if not keeps_input and "features" in changed.get("input", {}):
            del changed["input"]["features"]
        width = changed.get("input", {}).get("features", PLAIN_WIDTH)
        for part in _objects(changed):
            if part.get("layer") == "linear":
                part["out_features"] = width
        yield (index,), changed


def smaller_integers(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """One number smaller: a small one, or half of it. Widths stay at that of the input: equal ones read best."""
    places = [(owner, key) for owner in _containers(raw) for key in _keys(owner) if _is_integer(owner, key)]
    for number, (owner, key) in enumerate(places):
        value = owner[key]
        least = PLAIN_WIDTH if key == "out_features" else 0
        smaller = sorted({small for small in (*SMALL_INTEGERS, value // 2) if least <= small < value})
        for index, new in enumerate(smaller):
            changed = _copy(raw)
            targets = [(one, name) for one in _containers(changed) for name in _keys(one) if _is_integer(one, name)]
            target, name = targets[number]
            target[name] = new
            yield (number, index), changed


def plain_layers(raw: Raw) -> Iterator[tuple[Position, Raw]]:
    """A ReLU in the place of a layer or region."""
    for number, row in enumerate(_rows(raw)):
        for index in range(len(row)):
            changed = _copy(raw)
            _rows(changed)[number][index] = dict(PLAIN_LAYER)
            yield (number, index), changed


PASSES: tuple[Pass, ...] = (
    plain_surroundings,
    fewer_steps,
    fewer_layers,
    unwrapped_regions,
    plain_objects,
    plain_fields_everywhere,
    plain_fields,
    one_width,
    shorter_lists,
    smaller_integers,
    plain_layers,
)


def _shortened(raw: Raw, lists: Callable[[Raw], list[list[Any]]]) -> Iterator[tuple[Position, Raw]]:
    """Runs of 2^k items left out, long ones first."""
    longest = max((len(items) for items in lists(raw)), default=0)
    size = 1 << max(longest.bit_length() - 1, 0)
    while size:
        for number, items in enumerate(lists(raw)):
            for start in range(0, len(items) - size + 1, size):
                changed = _copy(raw)
                del lists(changed)[number][start : start + size]
                yield (-size, number, start), changed
        size //= 2


# --- The structure of a case. All of these walk in one order, so a number finds the same part in a copy. ---


def _rows(raw: Raw) -> list[list[Any]]:
    """The lists of layers, outer before inner."""
    rows = [raw["layers"]]
    for row in rows:  # grows while it is walked
        rows.extend(layer[REGION_BODY] for layer in row if REGION_BODY in layer)
    return rows


def _containers(value: Any) -> list[Any]:
    found = [value]
    for part in found:  # grows while it is walked
        children = part.values() if isinstance(part, dict) else part
        found.extend(child for child in children if isinstance(child, dict | list))
    return found


def _objects(raw: Raw) -> list[Raw]:
    return [part for part in _containers(raw) if isinstance(part, dict) and part is not raw]


def _lists(raw: Raw) -> list[list[Any]]:
    return [part for part in _containers(raw) if isinstance(part, list)]


def _is_flat(items: list[Any]) -> bool:
    return not any(isinstance(item, dict) for item in items)


def _is_tag(owner: Any, key: Any) -> bool:
    """Whether an entry says what its owner is. The field ``recipe`` holds an object, and that a tag ``recipe``."""
    return key in TAGS and not isinstance(owner[key], dict | type(None))


def _is_optional(owner: Raw, key: str) -> bool:
    """Whether a field may be left out; of one that may not, the deletion is no valid case."""
    return not _is_tag(owner, key) and key != REGION_BODY


def _keys(owner: Any) -> list[Any]:
    return sorted(owner) if isinstance(owner, dict) else list(range(len(owner)))


def _is_integer(owner: Any, key: Any) -> bool:
    return type(owner[key]) is int and not _is_tag(owner, key)


def _copy(part: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(part))


# --- Repairs ---


def _repaired(raw: Raw) -> Case | None:
    """The case, with widths that fit and without sharing where it must be; None where that does not help."""
    for repair in (lambda given: given, _with_fitting_widths, _without_sharing):
        try:
            return msgspec.convert(repair(raw), Case)
        except msgspec.ValidationError:
            continue
    return None


def _without_sharing(raw: Raw) -> Raw:
    """Every linear with parameters of its own."""
    changed = _copy(raw)
    for part in _objects(changed):
        if part.get("layer") == "linear":
            part.pop("parameters", None)
    return _with_fitting_widths(changed)


def _with_fitting_widths(raw: Raw) -> Raw:
    """The last linear of each residual's body gives the width that the residual needs."""
    layers = msgspec.convert(raw["layers"], tuple[AnyLayer, ...])
    width = raw.get("input", {}).get("features", PLAIN_WIDTH)
    try:
        fitted = tuple(_fitted(layers, width))
    except ValueError as error:  # an odd width that a gated activation halves
        raise msgspec.ValidationError(str(error)) from error
    return {**raw, "layers": msgspec.to_builtins(fitted)}


def _fitted(layers: tuple[AnyLayer, ...], width: int) -> Iterator[AnyLayer]:
    for layer in layers:
        if isinstance(layer, Region):
            body = tuple(_fitted(layer.body, width))
            if isinstance(layer, Residual | NoGrad):
                body = _ending_in(body, width)
            layer = replace(layer, body=body)
        yield layer
        width = output_width((layer,), width)


def _ending_in(body: tuple[AnyLayer, ...], width: int) -> tuple[AnyLayer, ...]:
    """``body`` with its last linear changed such that it ends in ``width``, if it has one outside of regions."""
    for index in reversed(range(len(body))):
        layer = body[index]
        if isinstance(layer, Linear):
            halvings = sum(isinstance(after, GatedActivation) for after in body[index + 1 :])
            return (*body[:index], replace(layer, out_features=width << halvings), *body[index + 1 :])
    return body
