"""Bisection over releases: the search, what one environment says, and a real environment with another release."""

from __future__ import annotations

import json
import math
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import bisect_versions, environments
from harness.bisect_versions import Tried, change, verdict_with
from harness.environments import Environments, ReleaseError, between
from tests.cli.support import CASE, tefuzz, write


def search(verdicts: Sequence[str | None]) -> tuple[bisect_versions.Change, list[int]]:
    """Bisect releases 0, 1, 2... with these verdicts; which ones were tried?"""
    asked: list[int] = []

    def try_version(version: str) -> Tried:
        asked.append(int(version))
        verdict = verdicts[int(version)]
        return Tried(version, verdict, "" if verdict else "no wheel")

    return change([str(index) for index in range(len(verdicts))], try_version), asked


@given(before=st.integers(1, 60), after=st.integers(1, 60))
def test_the_release_is_found_with_few_trials(before: int, after: int) -> None:
    found, asked = search(["clean"] * before + ["bad"] * after)
    assert (found.before, found.after) == (Tried(str(before - 1), "clean"), Tried(str(before), "bad"))
    assert found.untried == ()
    assert len(asked) == len(set(asked)) <= 3 + math.log2(before + after)


@given(verdicts=st.lists(st.sampled_from(["clean", "bad", "worse", None]), min_size=2, max_size=40))
def test_whatever_the_releases_do_the_answer_is_a_change(verdicts: list[str | None]) -> None:
    usable = [verdict for verdict in verdicts if verdict is not None]
    if len(usable) < 2:
        with pytest.raises(ReleaseError, match="fewer than two releases can be tried"):
            search(verdicts)
        return
    found, asked = search(verdicts)
    assert len(asked) == len(set(asked)), "no release is tried twice"
    assert found.found == (usable[0] != usable[-1])
    if found.found:
        before, after = int(found.before.version), int(found.after.version)
        assert verdicts[before] == usable[0] != verdicts[after]
        assert [verdicts[int(version)] for version in found.untried] == [None] * (after - before - 1)


def test_why_releases_cannot_be_tried_is_said() -> None:
    with pytest.raises(ReleaseError, match=r"fewer than two releases can be tried \(0: no wheel; 2: no wheel\)"):
        search([None, "clean", None])


class FakeEnvironments(Environments):
    """An interpreter that is a shell script."""

    def __init__(self, directory: Path, script: str) -> None:
        super().__init__(directory)
        path = directory / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def interpreter(self, package: str, version: str) -> Path:
        if version == "0":
            raise ReleaseError("there is no wheel")
        return self.directory / "python"


ANSWER = json.dumps({"buckets": ["a/b/c/d/e", "f/g/h/i/j"], "versions": {}, "refusal": None})


@pytest.mark.parametrize(
    ("script", "bucket", "expected"),
    [
        (f"echo noise; echo '{ANSWER}'", None, Tried("1", "a/b/c/d/e, f/g/h/i/j")),
        (f"echo '{ANSWER}'", "f/g/h/i/j", Tried("1", "in bucket f/g/h/i/j")),
        (f"echo '{ANSWER}'", "c3d3d1d1d1", Tried("1", "not in bucket c3d3d1d1d1")),
        ("""echo '{"buckets": []}'""", None, Tried("1", "clean")),
        ("kill -SEGV $$", None, Tried("1", "crash")),
        ("echo 'ImportError: no thunder' >&2; exit 1", None, Tried("1", None, "ImportError: no thunder")),
        ("exec sleep 60", None, Tried("1", "hang")),
    ],
    ids=["buckets", "in the bucket", "not in the bucket", "clean", "crash", "cannot be tried", "hang"],
)
def test_what_one_release_shows(
    script: str, bucket: str | None, expected: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect_versions, "HANG_SECONDS", 2.0 if expected.verdict == "hang" else 60.0)
    fakes = FakeEnvironments(tmp_path, script)
    assert verdict_with(fakes, "lightning-thunder", "1", tmp_path / "case.json", "cpu", bucket) == expected
    assert verdict_with(fakes, "lightning-thunder", "0", tmp_path / "case.json", "cpu").problem == "there is no wheel"


LISTED = ["0.10.0", "0.9.0", "0.2.0rc1", "0.2.0", "0.2.0.post1", "0.1.0", "what"]


def test_releases_between_two_others() -> None:
    assert between(LISTED, "p", "0.1.0", "0.9.0") == ["0.1.0", "0.2.0", "0.2.0.post1", "0.9.0"]
    assert between(LISTED, "p", "0.10.0", "0.9.0") == ["0.9.0", "0.10.0"]
    assert between(LISTED, "p", "0.2.0rc1", "0.2.0") == ["0.2.0rc1", "0.2.0"], "asked for by name"
    with pytest.raises(ReleaseError, match=r"p has no release 0\.3: there are 0\.1\.0, 0\.2\.0rc1, 0\.2\.0, "):
        between(LISTED, "p", "0.3", "0.9.0")
    with pytest.raises(ReleaseError, match="'new' is no version of p"):
        between(LISTED, "p", "0.1.0", "new")


def test_the_index_is_asked_for_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = iter(["p (0.9.0)\nAvailable versions: 0.9.0, 0.2.0, 0.1.0\n  INSTALLED: 0.1.0\n", ""])

    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert command[1:] == ["-m", "pip", "index", "versions", "--pre", "p"]
        return SimpleNamespace(stdout=next(answers), stderr="WARNING: old\nERROR: no network\nWARNING: pip is old\n")

    monkeypatch.setattr(environments.subprocess, "run", run)
    asking = Environments(tmp_path, ("--pre",))
    assert asking.releases("p", "0.1.0", "0.2.0") == ["0.1.0", "0.2.0"]
    with pytest.raises(ReleaseError, match=r"cannot be listed \(ERROR: no network\). Name them: p=1,...,2"):
        asking.releases("p", "1", "2")


def wheel(directory: Path, name: str, version: str) -> None:
    """A package with nothing in it."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


def test_an_environment_has_the_release_and_all_else_of_the_running_one(tmp_path: Path) -> None:
    wheel(tmp_path, "lightning_thunder", "99.1")
    made = Environments(tmp_path / "environments", ("--no-index", "--find-links", str(tmp_path)))
    python = made.interpreter("lightning-thunder", "99.1")
    script = (
        "import importlib.metadata as m, importlib.util as u\n"
        "print(m.version('lightning-thunder'), m.version('torch'), u.find_spec('harness').origin)"
    )
    said = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    here = Path(bisect_versions.__file__).parent / "__init__.py"
    version, torch, harness = said.stdout.split()
    assert (version, harness) == ("99.1", str(here))
    assert torch.startswith("2.")
    assert Environments(tmp_path / "environments").interpreter("lightning-thunder", "99.1") == python, "it is kept"
    with pytest.raises(ReleaseError, match="`python -m pip` failed: ERROR: No matching distribution"):
        made.interpreter("lightning-thunder", "98.0")
    unfinished = tmp_path / "environments" / "lightning-thunder-98.0" / "tefuzz-base"
    assert not unfinished.exists(), "it is not taken for complete"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    case = write(tmp_path / "case.json", CASE)

    def verdict(_environments: object, _package: str, version: str, *_: object) -> Tried:
        return Tried(version, {"1": "clean", "2": "clean", "3": "a/b/c/d/e"}.get(version), "no wheel")

    monkeypatch.setattr("harness.commands.bisect_versions.verdict_with", verdict)
    changed = tefuzz("bisect", case, "--versions", "lightning_thunder=1,2,3,4")
    assert changed.exit_code == 1, changed.output
    assert changed.stdout.splitlines() == [
        "lightning-thunder: 4 releases from 1 to 4",
        "  1        clean",
        "  4        cannot be tried: no wheel",
        "  3        a/b/c/d/e",
        "  2        clean",
        "changed in lightning-thunder 3",
        "  2        clean",
        "  3        a/b/c/d/e",
    ]
    same = tefuzz("bisect", case, "--versions", "lightning-thunder=1,2")
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "no change: clean in 1 and 2")
    gap = tefuzz("bisect", case, "--versions", "lightning-thunder=1,8,9,3")
    assert "or in one of these, which cannot be tried: 8, 9" in gap.stdout
    none = tefuzz("bisect", case, "--versions", "lightning-thunder=8,9")
    assert none.exit_code == 2
    assert "fewer than two releases can be tried (8: no wheel; 9: no wheel)" in none.stderr


@pytest.mark.parametrize("versions", ["thunder=1..2", "lightning-thunder", "lightning-thunder=1", "torch=1..2"])
def test_versions_that_make_no_sense(versions: str, tmp_path: Path) -> None:
    result = tefuzz("bisect", write(tmp_path / "case.json", CASE), "--versions", versions)
    assert result.exit_code == 2
    assert "give PACKAGE=FROM..TO or PACKAGE=A,B,C" in result.stderr


def test_reverts_and_versions_do_not_go_together(tmp_path: Path) -> None:
    case = write(tmp_path / "case.json", CASE)
    result = tefuzz("bisect", case, "--versions", "lightning-thunder=1,2", "--revert", "remat")
    assert result.exit_code == 2
    assert "leave out --revert" in result.stderr
