"""Versions of the JSON of a case, and how an older document becomes one of the present version.

Plain data in, plain data out: a file is never executed. A change of ``harness.case`` that old files do not survive
raises ``SCHEMA_VERSION`` and adds one function to ``MIGRATIONS``; a new field with a default needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA_VERSION = 1

Document = dict[str, Any]
Migration = Callable[[Document], Document]

MIGRATIONS: dict[int, Migration] = {}
"""Version -> what turns a document of that version into one of the next. It need not set ``schema``."""


def upgraded(document: Document) -> Document:
    """The document as one of ``SCHEMA_VERSION``; its version has to be that one or a key of ``MIGRATIONS``.

    Whatever a migration raises for a document that never was valid in its version comes through.
    """
    while (version := document["schema"]) != SCHEMA_VERSION:
        document = MIGRATIONS[version](document) | {"schema": version + 1}
    return document
