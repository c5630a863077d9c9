"""The programs of docs/findings still show what docs/findings.md says, and the page covers every known issue."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.known_issues import KnownIssue, load_known_issues

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "findings.md"
PROGRAMS = sorted((DOCS / "findings").glob("*.py"))
VERSIONS = {"lightning-thunder": "0.2.6", "transformer_engine": "2.9.0"}
"""The releases that the page speaks of."""
TIMEOUT_S = 300


def sections() -> dict[str, str]:
    """Text below each second-level heading of the page, by heading."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.skipif(
    {name: importlib.metadata.version(name) for name in VERSIONS} != VERSIONS,
    reason=f"the findings are those of {VERSIONS}",
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_shows_the_finding(program: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    # A program that ends with a traceback has status 1 too.
    assert "Traceback" not in result.stderr
    assert result.returncode == 1, result.stdout + result.stderr
    assert "expected" in result.stdout
    assert "seen" in result.stdout


def test_there_are_programs() -> None:
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_program_has_a_section_that_links_to_it(program: Path) -> None:
    assert f"(findings/{program.name})" in sections()[program.stem]


@pytest.mark.parametrize("issue", load_known_issues().issue, ids=lambda issue: issue.id)
def test_known_issue_is_explained_where_its_url_says(issue: KnownIssue) -> None:
    page, _, anchor = issue.url.partition("#")
    if page != "docs/findings.md":
        pytest.skip(f"{issue.url} is not a section of the page")
    assert f"(../corpus/{issue.case})" in sections()[anchor]


def test_links_of_the_page_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert [target for target in targets if not target.startswith("https:") and not (DOCS / target).exists()] == []


def test_sections_are_in_the_order_of_the_table() -> None:
    table = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\)", PAGE.read_text(), flags=re.MULTILINE)
    assert table == [heading for heading in sections() if heading != "Legitimate differences"]
