"""Files of every schema version are read, now and later; those of other versions are refused with the remedy.

``schemas/N.json`` was written under version N and is never edited. A change of ``harness.case`` that breaks it needs a
migration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import schema
from harness.case import CaseError, canonical_json, load_case, parse_case
from harness.corpus import load_regression, parse_regression
from harness.schema import MIGRATIONS, SCHEMA_VERSION, Document, upgraded

SCHEMAS = Path(__file__).parent / "schemas"
IDS = {1: "512dc925ff7e"}
"""Version -> id of the case in its file: an id outlives changes of the schema, or corpora would lose their names."""


def test_every_older_version_has_a_migration_and_every_version_a_file() -> None:
    assert set(MIGRATIONS) == set(range(1, SCHEMA_VERSION))
    versions = set(range(1, SCHEMA_VERSION + 1))
    assert {int(path.stem) for path in SCHEMAS.glob("*.json")} == versions
    assert set(IDS) == versions


@pytest.mark.parametrize("version", IDS)
def test_a_file_of_each_version_becomes_a_case(version: int) -> None:
    path = SCHEMAS / f"{version}.json"
    document = json.loads(path.read_text())["case"]
    assert document["schema"] == version
    case = load_regression(path).case
    assert case.schema == SCHEMA_VERSION
    assert case.id == IDS[version]
    assert parse_case(canonical_json(case)) == case


def test_migrations_are_done_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(document: Document) -> Document:
        return {("b" if name == "a" else name): value for name, value in document.items()}

    def double(document: Document) -> Document:
        return document | {"b": document["b"] * 2}

    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: rename, 2: double})
    assert upgraded({"schema": 1, "a": 2}) == {"schema": 3, "b": 4}
    assert upgraded({"schema": 2, "b": 2}) == {"schema": 3, "b": 4}
    assert upgraded({"schema": 3, "b": 2}) == {"schema": 3, "b": 2}


OLD: dict[str, Any] = {"schema": 0, "model": [{"layer": "rms_norm"}]}


@pytest.fixture
def _version_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version before the first, whose layers have another name."""
    monkeypatch.setitem(MIGRATIONS, 0, lambda document: {"layers": document["model"]})


@pytest.mark.usefixtures("_version_0")
def test_an_old_file_is_read_as_if_it_were_new(tmp_path: Path) -> None:
    new = parse_case(b'{"schema": 1, "layers": [{"layer": "rms_norm"}]}')
    path = tmp_path / "old.json"
    for document in (OLD, {"why": "old", "case": OLD}):
        path.write_text(json.dumps(document))
        assert load_regression(path).case == new
    path.write_text(json.dumps(OLD))
    assert load_case(path).id == new.id


@pytest.mark.usefixtures("_version_0")
def test_a_broken_old_file_is_named_with_the_remedy() -> None:
    with pytest.raises(CaseError, match=r"^old\.json: at \$: not a valid case of schema version 0 .*Restore the file"):
        parse_case(b'{"schema": 0}', "old.json")
    message = r"^old\.json: in \$\.case: at \$: not a valid case of schema version 0"
    with pytest.raises(CaseError, match=message):
        parse_regression(b'{"why": "w", "case": {"schema": 0}}', "old.json")


def test_a_newer_file_is_refused_with_the_remedy() -> None:
    content = json.dumps({"why": "w", "case": {"schema": SCHEMA_VERSION + 1, "layers": []}}).encode()
    with pytest.raises(CaseError, match=r"^new\.json: in \$\.case: at \$\.schema: version 2 .*Install a newer tefuzz"):
        parse_regression(content, "new.json")
