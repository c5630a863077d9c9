"""The scripts and workflows of ``.ci``: they are whole, and call what is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from harness.cli import main
from harness.profiles import PROFILES

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".ci" / "github").glob("*.yml"))
SCRIPTS = [ROOT / ".ci" / name for name in ("run", "nightly", "open-issue")]


def read(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> list[list[str]]:
    """What the steps run, as words; GitHub's expressions stay one word."""
    lines = [re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", step["run"]) for step in steps(path) if "run" in step]
    return [shlex.split(line) for text in lines for line in text.replace("\\\n", " ").splitlines()]


def test_the_workflows_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["nightly", "pull-request", "weekly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_whole(path: Path) -> None:
    workflow = read(path)
    assert set(workflow) == {"name", True, "permissions", "jobs", *({"concurrency"} & set(workflow))}, "True is `on`"
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        assert all(re.fullmatch(r"actions/[a-z/-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
    upload = steps(path)[-1]
    assert (upload["uses"].partition("@")[0], upload["if"]) == ("actions/upload-artifact", "always()")
    assert upload["with"]["include-hidden-files"] is True, ".tefuzz would be left out"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_is_there(path: Path) -> None:
    called = [words for words in commands(path) if words[0] in (".venv/bin/tefuzz", ".venv/bin/pytest")]
    assert called
    for words in called:
        if words[0] == ".venv/bin/pytest":
            assert words[words.index("--tefuzz-profile") + 1] in PROFILES
            continue
        command = main.commands[words[1]]
        # Raises for an option that is not there.
        context = click.Context(command, info_name=words[1])
        command.make_parser(context).parse_args([word.replace("$SECONDS_TO_FUZZ", "60") for word in words[2:]])


def test_the_state_of_the_nightly_run_is_restored_kept_and_uploaded() -> None:
    (path,) = (path for path in WORKFLOWS if path.stem == "nightly")
    by_action = {step["uses"].partition("@")[0]: step for step in steps(path) if "uses" in step}
    restore, save = by_action["actions/cache/restore"], by_action["actions/cache/save"]
    assert restore["with"]["path"] == save["with"]["path"] == ".tefuzz/nightly"
    assert restore["with"]["key"] == save["with"]["key"]
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])
    assert save["if"] == "always()"
    assert by_action["actions/upload-artifact"]["with"]["path"].split() == ["reports/nightly", ".tefuzz/nightly"]
    (words,) = (words for words in commands(path) if "nightly" in words)
    assert words[words.index("--state") + 1] == ".tefuzz/nightly"
    assert words[words.index("--output") + 1] == "reports/nightly"
    assert Path(words[words.index("--open") + 1]) in [script.relative_to(ROOT) for script in SCRIPTS]


def test_a_pull_request_is_fuzzed_with_a_fixed_seed() -> None:
    (path,) = (path for path in WORKFLOWS if path.stem == "pull-request")
    (words,) = (words for words in commands(path) if words[0].endswith("pytest"))
    assert PROFILES[words[words.index("--tefuzz-profile") + 1]].fixed_seed is not None


def test_the_weekly_run_tries_every_pair_of_releases() -> None:
    (path,) = (path for path in WORKFLOWS if path.stem == "weekly")
    assert read(path)["jobs"]["releases"]["strategy"] == {
        "fail-fast": False,
        "matrix": {"transformer-engine": ["2.9.0", "2.20.2"], "lightning-thunder": ["0.2.5", "0.2.6"]},
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash_that_can_be_called(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_the_nightly_script_passes_its_options_on() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = subprocess.run(
        [ROOT / ".ci" / "nightly", "--time", "none"],
        env=os.environ | {"INSTALL": "true", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "Invalid value for '--time': 'none' is not a valid float" in said.stderr


GH = """#!/bin/sh
echo "$@" >> "$CALLS"
test "$2" != list || echo "$EXISTING"
"""


@pytest.mark.parametrize("existing", ["", "17"])
def test_an_issue_is_opened_once(existing: str, tmp_path: Path) -> None:
    folder, gh, calls = tmp_path / "0a1b2c3d4e", tmp_path / "gh", tmp_path / "calls"
    folder.mkdir()
    (folder / "report.md").write_text("\n**It is not shown.**\n\n# Two linears share one state\n\nMore.\n")
    gh.write_text(GH)
    gh.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CALLS": str(calls), "EXISTING": existing}
    subprocess.run([ROOT / ".ci" / "open-issue", folder], env=os.environ | environment, check=True)
    asked, *opened = calls.read_text().splitlines()
    assert asked.startswith("issue list --state all --search 0a1b2c3d4e in:title")
    if existing:
        assert opened == []
    else:
        title = "Two linears share one state [0a1b2c3d4e]"
        assert opened == [f"issue create --title {title} --body-file {folder / 'report.md'}"]
