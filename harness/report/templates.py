"""The jinja2 templates beside this file. What goes into HTML is escaped; Markdown quotes foreign text in fences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2


def fenced(text: str, language: str = "") -> str:
    """A Markdown code block, with a fence that nothing inside can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def code(text: str) -> str:
    """Text on one line of Markdown, as code."""
    line = " ".join(text.split())
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_environment.filters |= {"fenced": fenced, "code": code}


def render(name: str, **context: Any) -> str:
    """The text of a template."""
    return _environment.get_template(name).render(context)
