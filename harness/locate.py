"""Where a finding begins: the first layer whose value or FP8 state differs, the pass that made a trace wrong, and
which side is further from float64.

``locate`` runs the case once more, with the value of each layer as a further output: what can be seen only there is
looked for there. It needs the fixes undone that were undone when the finding was made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.case import AnyLayer, Case, ExtraOutput, replace
from harness.checks.base import FRAME, Finding, Run
from harness.compare import compared_tensors, gradient_key, output_key, output_name
from harness.run import Verdict, run_case
from harness.subjects.base import QuantizerState
from harness.subjects.float64 import Float64, OverflowsError
from harness.traces import pass_name


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tensor, in order of computation, in which the sides differ."""

    step: int
    what: str
    key: str | None
    """Its key among outputs and gradients; None for FP8 state, of which float64 knows nothing, and for what is None."""


def locate(verdict: Verdict, finding: Finding) -> list[str]:
    """What is known about where ``finding`` of ``verdict`` begins, a line each."""
    return [*_in_traces(finding), *_in_the_code(finding), *_in_numbers(verdict, finding)]


def _in_traces(finding: Finding) -> Iterator[str]:
    """The pass that made the trace in which the finding was seen."""
    for caption, trace in finding.evidence.traces:
        yield f"first wrong trace: the {caption}, made by the pass {pass_name(trace)!r}"
    if finding.evidence.names:
        yield f"names in the trace: {', '.join(finding.evidence.names)}"


def _in_the_code(finding: Finding) -> Iterator[str]:
    """The innermost frame of an exception."""
    frames = FRAME.findall(finding.message)
    if frames:
        file, line, function = frames[-1]
        yield f"raised in {file}, line {line}, in {function}"


def _in_numbers(verdict: Verdict, finding: Finding) -> Iterator[str]:
    run = verdict.run
    if not run.subject.steps or not run.reference.steps:
        return
    first = first_difference(run)
    if first is None:
        yield "numbers: all that both sides gave is equal"
        return
    yield f"first difference: step {first.step}, {first.what}"
    # FP8 state names its linear; the value of a layer inside the model has to be asked for.
    probe = None if first.key is None else probed(run.case)
    if probe is not None:
        case, names = probe
        again = run_case(case).run
        inside = first_difference(again, names)
        if inside is None:
            yield "with the value of each layer as a further output: no difference"
        else:
            run = again
            if inside.what != first.what:
                yield f"with the value of each layer as a further output: step {inside.step}, {inside.what}"
    yield from _sides(run)


def probed(case: Case) -> tuple[Case, dict[str, str]] | None:
    """``case`` with the value behind each outermost layer as a further output, and what its paths are in ``case``.

    None where a model cannot have further outputs, or nothing is gained by them.
    """
    if case.jit is None or case.jit.entry == "grad" or len(case.layers) < 2:
        return None
    layers: list[AnyLayer] = []
    paths: dict[str, str] = {}
    for index, layer in enumerate(case.layers):
        paths[str(len(layers))] = str(index)
        layers.append(layer)
        if index + 1 < len(case.layers):
            paths[str(len(layers))] = str(index)
            layers.append(ExtraOutput(gradient=False))
    return replace(case, layers=tuple(layers)), paths


def first_difference(run: Run, paths: dict[str, str] | None = None) -> Difference | None:
    """The first tensor of ``run`` in which the sides differ; ``paths`` translates those of a probed case."""
    return next(_differences(run, paths or {}), None)


def _differences(run: Run, paths: dict[str, str]) -> Iterator[Difference]:
    for index, _ in enumerate(zip(run.subject.steps, run.reference.steps, strict=False)):
        yield from _step_differences(run, index, paths)


def _step_differences(run: Run, index: int, paths: dict[str, str]) -> Iterator[Difference]:
    """Those of one step in order of computation: layer by layer, then gradients from the last layer to the first."""
    ours, theirs = run.subject.steps[index], run.reference.steps[index]

    def name(path: str) -> str:
        head, dot, rest = path.partition(".")
        return f"{paths.get(head, head)}{dot}{rest}"

    def states(path: str, tensors: tuple[str, ...]) -> Iterator[Difference]:
        for tensor in tensors:
            pair = [side.fp8_state.get(path, {}).get(tensor) for side in (ours, theirs)]
            if (what := _state_difference(*pair)) is not None:
                yield Difference(index, f"linear {name(path)}, {what} of the {tensor.replace('_', ' ')}", None)

    def tensors(key: str, what: str, mine: Tensor | None, other: Tensor | None) -> Iterator[Difference]:
        if mine is None and other is None:
            return
        if mine is None or other is None:
            side = run.subject.subject if mine is None else run.reference.subject
            yield Difference(index, f"{what}: None in {side}", None)
        elif run.comparison.difference(key, mine, other) is not None:
            yield Difference(index, what, key)

    extra = 0
    for number, layer in enumerate(run.case.layers):
        for path in [path for path in theirs.fp8_state if path.partition(".")[0] == str(number)]:
            yield from states(path, ("input", "weight"))
        if isinstance(layer, ExtraOutput):
            extra += 1
            if extra < len(ours.outputs) == len(theirs.outputs):
                what = output_name(extra)
                if str(number) in paths:
                    at = paths[str(number)]
                    what = f"value of layer {at} ({type(run.case.layers[number - 1]).__name__})"
                yield from tensors(output_key(index, extra), what, ours.outputs[extra], theirs.outputs[extra])
    if ours.outputs and theirs.outputs:
        yield from tensors(output_key(index, 0), "output", ours.outputs[0], theirs.outputs[0])
    for path in reversed([*theirs.fp8_state]):
        yield from states(path, ("grad_output",))
    for parameter, gradient in reversed([*theirs.parameter_gradients.items()]):
        mine = ours.parameter_gradients.get(parameter)
        yield from tensors(gradient_key(index, parameter), f"gradient of {name(parameter)}", mine, gradient)
    pair = (ours.input_gradient, theirs.input_gradient)
    yield from tensors(gradient_key(index, "input"), "gradient of the input", *pair)


def _state_difference(ours: QuantizerState | None, theirs: QuantizerState | None) -> str | None:
    if ours is None or theirs is None:
        return None
    if not torch.equal(ours.amax_history, theirs.amax_history):
        return "amax history"
    return None if torch.equal(ours.scale, theirs.scale) else "scale"


def _sides(run: Run) -> Iterator[str]:
    """How far both sides are from float64 in the first output or gradient that differs."""
    first = next((found for found in _differences(run, {}) if found.key is not None), None)
    if first is None or first.key is None:
        return
    try:
        exact = _float64(run.case)[first.key]
    except OverflowsError as error:
        yield f"float64 does not tell which side is wrong: {error}"
        return
    sides = [
        (side.subject, _distance(compared_tensors(side)[first.key], exact)) for side in (run.subject, run.reference)
    ]
    (far, largest), (near, smaller) = sorted(sides, key=lambda side: side[1], reverse=True)
    if largest == smaller:
        yield f"float64 does not tell which side is wrong: both are off {_share(largest)}"
    else:
        yield f"further from float64: {far}, off {_share(largest)}; {near} is off {_share(smaller)}"


def _share(distance: float) -> str:
    return f"by {distance:.2g} of the largest value" if math.isfinite(distance) else "by a NaN or an infinity"


def _float64(case: Case) -> dict[str, Tensor]:
    observation = Float64(case, "cpu").observe()
    if observation.failure is not None:
        raise observation.failure.error
    return compared_tensors(observation)


def _distance(value: Tensor, exact: Tensor) -> float:
    """The largest error, in units of the largest value; infinite for a NaN."""
    error = (value.detach().cpu().double() - exact).abs().nan_to_num(nan=math.inf)
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return float(error.max()) / largest if largest else float(error.max())
