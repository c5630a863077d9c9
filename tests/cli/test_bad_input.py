"""Bad input is named with its remedy and exits with 2, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.commands import bisect, replay, run
from tests.cli.support import CASE, tefuzz, write

BAD_FILES: dict[str, tuple[Any, str]] = {
    "broken JSON": ('{"schema": 1,', "not JSON"),
    "not an object": ([1, 2], "expected an object"),
    "unknown field": (CASE | {"sed": 1}, "Did you mean `seed`?"),
    "impossible model": (CASE | {"input": {"features": 0}}, "$.input.features"),
    "odd width": (
        {"schema": 1, "layers": [{"layer": "gated_activation"}], "input": {"features": 65}},
        "halves an odd width of 65",
    ),
    "later schema": (CASE | {"schema": 99}, "Install a newer tefuzz"),
    "later schema in a regression": ({"why": "w", "case": CASE | {"schema": 99}}, "in $.case: at $.schema"),
    "regression without why": ({"case": CASE}, "missing required field `why`"),
    "regression with an empty why": ({"why": "", "case": CASE}, "$.why"),
    "regression without case": ({"why": "w"}, "missing required field `case`"),
    "regression with a typo": ({"why": "w", "revrt": "caching", "case": CASE}, "Did you mean `revert`?"),
    "regression with an unknown revert": ({"why": "w", "revert": "cachng", "case": CASE}, "no revert 'cachng'"),
}


@pytest.fixture(autouse=True)
def _nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_device: str) -> None:
        raise AssertionError("the subjects were imported for bad input")

    monkeypatch.setattr(run, "start", start)
    monkeypatch.setattr(replay, "start", start)
    monkeypatch.setattr(bisect, "start", start)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file(kind: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[kind]
    path = write(tmp_path / "bad.json", content)
    result = tefuzz("run", path)
    assert result.exit_code == 2, result.output
    assert str(path) in result.stderr
    assert message in result.stderr


def test_every_bad_file_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good.json", CASE)
    bad = write(tmp_path / "bad.json", "{")
    result = tefuzz("run", good, bad, tmp_path / "missing.json")
    assert result.exit_code == 2
    assert f"{bad}: not JSON" in result.stderr
    assert f"{tmp_path / 'missing.json'}: cannot be read" in result.stderr
    assert str(good) not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'CASE.json...'"),
        (["run", "x.json", "--revert", "cachng"], "'cachng' is not one of 'caching', 'remat', 'remat-names', 'fuser'"),
        (["replay", "--revert", "cachng"], "'cachng' is not one of"),
        (["run", "x.json", "--device", "tpu"], "'tpu' is not one of 'auto', 'cuda', 'cpu'"),
        (["bisect", "x.json"], "x.json: cannot be read"),
        (["bisect", "x.json", "--bucket", "output"], "'output' is no bucket"),
        (["run", "x.json", "--expect-bucket", "output"], "'output' is no bucket"),
        (["replay", "-n", "two"], "'two' is no number: give one, or 'auto'"),
        (["stats", "-n", "0"], "0 is not in the range"),
        (["rnu", "x.json"], "No such command 'rnu'"),
    ],
)
def test_bad_option(arguments: list[str], message: str) -> None:
    result = tefuzz(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_directory_without_cases(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", "no case")
    result = tefuzz("replay", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path}: there is no *.json" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["run", "corpus/regressions/fuser.json", "--report-dir", "{file}/reports"],
        ["mutants", "v2-bias-lost", "--results", "{file}/results.jsonl"],
    ],
    ids=["run", "mutants"],
)
def test_a_place_that_cannot_be_written_is_refused_first(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = tefuzz(*[word.format(file=file) for word in command])
    assert result.exit_code == 2, result.output
    assert f"{file}" in result.output
    assert "Name another directory." in result.output
