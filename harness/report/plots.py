"""The pictures of a report, as SVG that takes its colours from the style sheet of the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from harness.case import AnyLayer, Case, describe, output_width
from harness.report.measures import Measure, StateSeries
from harness.report.shrinking import History
from harness.report.svg import element, line, svg, text

MAX_ROWS = 40
"""Rows of the plot of errors."""
MAX_SERIES = 12
"""Plots of FP8 state."""
ROW = 22
LABEL = 250
BAR = 520
BOX = 300
GAP = 14
MARK = 112
"""Room for the words beside a guilty layer."""


def shown_measures(measured: Sequence[Measure]) -> list[Measure]:
    """Those that the plot has room for: the ones that failed first, then in order."""
    chosen = sorted(measured, key=lambda measure: not measure.failed)[:MAX_ROWS]
    return sorted(chosen, key=list(measured).index)


def error_plot(measured: Sequence[Measure]) -> Markup:
    """A row for each tensor of each step: its error in ulp on a logarithmic scale, and the bound as a mark."""
    rows = shown_measures(measured)
    values = [value for m in rows for value in (m.ulp, m.allowed_ulp) if 0 < value < math.inf]
    low = math.floor(math.log10(min(values, default=1.0)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)

    def place(value: float) -> float:
        """Zero at the left edge, infinity at the right one, and powers of ten between."""
        if value == 0:
            return LABEL
        if value == math.inf:
            return LABEL + BAR
        return LABEL + 40 + (math.log10(value) - low) / (high - low) * (BAR - 100)

    bottom = 26 + ROW * len(rows)
    parts = []
    stride = max(1, (high - low) // 8)
    ticks = [(0.0, "0"), *((10.0**e, f"1e{e}") for e in range(low, high + 1, stride)), (math.inf, "∞ / NaN")]
    for value, label in ticks:
        parts += [
            line(place(value), 20, place(value), bottom, "grid"),
            text(place(value), 14, label, "tick", "middle"),
        ]
    for index, m in enumerate(rows):
        y = 26 + ROW * index + ROW / 2
        kind = "bad" if m.failed else "good"
        parts.append(text(LABEL - 10, y + 4, f"step {m.step}, {_shortened(m.name, 28)}", f"row {kind}", "end"))
        parts.append(line(LABEL, y, place(m.ulp), y, f"stem {kind}"))
        parts.append(line(place(m.allowed_ulp), y - 8, place(m.allowed_ulp), y + 8, "bound"))
        parts.append(element("circle", cx=f"{place(m.ulp):g}", cy=f"{y:g}", r="4.5", class_=kind))
    return svg(LABEL + BAR + 50, bottom + 6, "error of every output and gradient in ulp", parts)


def state_plot(series: StateSeries) -> Markup:
    """Scale and amax of one tensor over the steps, both sides."""
    width, height = 330.0, 118.0
    parts = [text(0, 12, _shortened(series.name, 48), "row bad" if series.differs else "row")]
    for column, (label, pair) in enumerate((("scale", series.scales), ("largest amax", series.amaxes))):
        left = 4 + column * (width / 2)
        parts += _panel(left, 36, width / 2 - 26, height - 58, label, series.steps, pair)
    return svg(width, height, f"{series.name}: scale and amax over the steps", parts)


def _panel(
    left: float, top: float, width: float, height: float, label: str, steps: Sequence[int], pair: Sequence[Any]
) -> list[Markup]:
    values = [value for side in pair for value in side if value is not None and math.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin

    def at(step: int, value: float) -> tuple[float, float]:
        x = left + width * ((step - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 0.5)
        return x, top + height * (1 - (value - low) / (high - low))

    parts = [text(left, top - 6, label, "tick"), line(left, top + height, left + width, top + height, "grid")]
    parts.append(text(left + width, top - 6, f"{high - margin:.4g}", "tick", "end"))
    parts.append(text(left + width, top + height + 12, f"{low + margin:.4g}", "tick", "end"))
    parts.append(text(left, top + height + 12, f"steps {steps[0]} to {steps[-1]}", "tick"))
    for side, class_ in ((1, "theirs"), (0, "ours")):
        points = [at(step, value) for step, value in zip(steps, pair[side], strict=True) if value is not None]
        points = [(x, y) for x, y in points if math.isfinite(y)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(element("polyline", points=path, class_=class_))
        radius = "3" if side == 0 else "5"
        parts += [element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=radius, class_=class_) for x, y in points]
    return parts


def shrink_plot(history: History) -> Markup:
    """The smallest case so far over the executions, in bytes of JSON, with its layers and steps."""
    width, height, left = 700.0, 150.0, 54.0
    last, largest = max(history.executions, 2), max(one.size for one in history.sizes)

    def at(execution: int, size: int) -> tuple[float, float]:
        return left + (width - left - 10) * (execution - 1) / (last - 1), 10 + (height - 40) * (1 - size / largest)

    points: list[tuple[float, float]] = []
    for one in history.sizes:
        x, y = at(one.execution, one.size)
        points += [(x, points[-1][1])] if points else []
        points.append((x, y))
    points.append((at(last, 0)[0], points[-1][1]))
    bottom = height - 30
    parts = [
        line(left, bottom, width - 10, bottom, "grid"),
        text(left - 6, 16, f"{largest} bytes", "tick", "end"),
        text(left - 6, bottom, "0", "tick", "end"),
        text(left, height - 12, "execution 1", "tick"),
        text(width - 10, height - 12, f"execution {history.executions}", "tick", "end"),
        element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_="ours"),
    ]
    for one in history.sizes:
        x, y = at(one.execution, one.size)
        title = element("title", f"execution {one.execution}: {one.layers} layers, {one.steps} steps: {one.model}")
        parts.append(element("circle", title, cx=f"{x:.1f}", cy=f"{y:.1f}", r="3.5", class_="ours"))
    return svg(width, height, "size of the smallest case over the executions", parts)


def model_picture(case: Case, guilty: frozenset[str]) -> Markup:
    """The layers from top to bottom, layers inside layers in a frame; the guilty ones are marked."""
    parts: list[Markup] = []
    width = case.input.features
    depth = _depth(case.layers)
    total = BOX + 2 * GAP * depth + MARK
    middle = (total - MARK + 8) / 2
    shape = ", ".join(map(str, case.input.batch))
    grad = ", requires grad" if case.input.requires_grad else ""
    parts.append(text(middle, 16, f"input [{shape}, {width}] {case.input.dtype}{grad}", "tick", "middle"))
    bottom = _layers(parts, case.layers, width, "", guilty, middle, 24, BOX + 2 * GAP * depth)
    after = output_width(case.layers, width)
    parts.append(text(middle, bottom + 14, f"output [{shape}, {after}]", "tick", "middle"))
    return svg(total, bottom + 22, describe(case.layers, width), parts)


def _layers(
    parts: list[Markup],
    layers: tuple[AnyLayer, ...],
    width: int,
    prefix: str,
    guilty: frozenset[str],
    middle: float,
    top: float,
    box: float,
) -> float:
    """Draw a row of layers below ``top`` and return where it ends."""
    for index, layer in enumerate(layers):
        path = f"{prefix}{index}"
        kind = "box bad" if path in guilty else "box"
        parts.append(line(middle, top, middle, top + 10, "arrow"))
        top += 10
        body: tuple[AnyLayer, ...] = getattr(layer, "body", ())
        left = middle - box / 2
        if body:
            inner: list[Markup] = []
            end = _layers(inner, body, width, f"{path}.", guilty, middle, top + 22, box - 2 * GAP) + 10
            parts.append(_box(left, top, box, end - top, f"frame {kind}"))
            parts.append(text(left + 10, top + 16, f"{path}  {type(layer).__name__.lower()}", "row"))
            parts += inner
            parts.append(line(middle, end - 10, middle, end, "arrow"))
        else:
            end = top + 30
            parts.append(_box(left, top, box, 30, kind))
            parts.append(text(left + 10, top + 20, f"{path}  {_shortened(describe((layer,), width), 42)}", "row"))
        if path in guilty:
            parts.append(text(left + box + 8, top + 20, "◀ seen here", "row bad"))
        top = end
        width = output_width((layer,), width)
    parts.append(line(middle, top, middle, top + 8, "arrow"))
    return top + 8


def _box(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    return element("rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", rx="5", class_=class_)


def _depth(layers: tuple[AnyLayer, ...]) -> int:
    bodies: list[tuple[AnyLayer, ...]] = [body for layer in layers if (body := getattr(layer, "body", ()))]
    return 1 + max(map(_depth, bodies)) if bodies else 0


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
