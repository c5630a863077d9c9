"""SVG that takes its colours from the style sheet of the page around it. Everything is escaped; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup


def element(name: str, content: Any = "", **attributes: Any) -> Markup:
    """An SVG element; names of attributes have underscores for hyphens, and everything is escaped."""
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), pairs, content)


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> Markup:
    """Text at a place."""
    return element("text", words, x=f"{x:g}", y=f"{y:g}", class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=f"{x1:g}", y1=f"{y1:g}", x2=f"{x2:g}", y2=f"{y2:g}", class_=class_)


def svg(width: float, height: float, title: str, parts: Sequence[Markup]) -> Markup:
    """A picture of a size in pixels; ``title`` says what it shows to those who cannot see it."""
    content = element("title", title) + Markup("").join(parts)
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return element("svg", content, xmlns="http://www.w3.org/2000/svg", role="img", **size)
