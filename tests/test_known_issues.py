"""Known issues: what they hide, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.case import Case, CaseError, Checkpoint, ExtraOutput, InPlace, Input, Linear, load_case
from harness.checks.base import Bucket
from harness.features import features
from harness.isolation import PROCESS_FINDINGS
from harness.known_issues import DEFAULT_FILE, KnownIssues, load_known_issues

LINEAR = Linear(out_features=64)
MUL = InPlace(operation="mul_")
CASE = Case(layers=(Checkpoint(body=(LINEAR,)),))
BUCKET = Bucket("gradient", "backward", "Linear.weight", "thunder with TE v2", "DelayedScaling")
INSTALLED = {"torch": "2.13.0+cpu", "lightning-thunder": "0.2.6", "transformer_engine": "2.9.0"}

ISSUE = """
[[issue]]
id = "one"
title = "a title"
url = "https://example.org/1"
case = "known/one.json"
features = ["layer:Checkpoint"]
versions = { lightning-thunder = ">=0.2.4,<0.2.7" }
bucket = { check = "gradient|output", where = "Linear.*" }
"""


def issues(tmp_path: Path, text: str = ISSUE) -> KnownIssues:
    path = tmp_path / "known_issues.toml"
    path.write_text(text)
    return load_known_issues(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(CaseError) as caught:
        issues(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'known_issues.toml'}: ")
    return message


def test_an_issue_explains_its_bucket_in_its_cases_and_versions(tmp_path: Path) -> None:
    found = issues(tmp_path).explaining(CASE, BUCKET, INSTALLED)
    assert found is not None
    assert found.id == "one"


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket("gradient missing", "backward", "Linear.weight", "thunder with TE v2", "DelayedScaling"),
        Bucket("gradient", "backward", "LayerNorm.weight", "thunder with TE v2", "DelayedScaling"),
        Bucket("a gradient", "backward", "Linear.weight", "thunder with TE v2", "DelayedScaling"),
    ],
)
def test_another_bucket_is_not_hidden(tmp_path: Path, bucket: Bucket) -> None:
    assert issues(tmp_path).explaining(CASE, bucket, INSTALLED) is None


def test_patterns_match_whole_parts(tmp_path: Path) -> None:
    narrow = ISSUE.replace('where = "Linear.*"', 'stage = "back", subject = "thunder with TE v2"')
    assert issues(tmp_path, narrow).explaining(CASE, BUCKET, INSTALLED) is None
    fitting = narrow.replace('"back"', '"back.*"')
    assert issues(tmp_path, fitting).explaining(CASE, BUCKET, INSTALLED) is not None
    other = fitting.replace("TE v2", "TE v1")
    assert issues(tmp_path, other).explaining(CASE, BUCKET, INSTALLED) is None


def test_other_cases_and_versions_are_not_hidden(tmp_path: Path) -> None:
    known = issues(tmp_path)
    assert known.explaining(Case(layers=(LINEAR,)), BUCKET, INSTALLED) is None
    for version in ("0.2.3", "0.2.7", "0.3"):
        assert known.explaining(CASE, BUCKET, INSTALLED | {"lightning-thunder": version}) is None
    assert known.explaining(CASE, BUCKET, INSTALLED | {"lightning-thunder": "0.2.6.dev3"}) is not None
    assert known.explaining(CASE, BUCKET, {"torch": "2.13.0"}) is None, "a package that is not there has no version"


def test_the_name_of_a_package_has_several_spellings(tmp_path: Path) -> None:
    underscore = issues(tmp_path, ISSUE.replace("lightning-thunder", "Lightning_Thunder"))
    assert underscore.explaining(CASE, BUCKET, INSTALLED) is not None


def test_no_issue_of_the_file_hides_what_it_does_not_name() -> None:
    """A crash, a hang or a name computed twice is never what one of these issues looks like."""
    others = (*PROCESS_FINDINGS, "name computed twice", "used after deletion", "not deterministic", "no such check")
    for issue in load_known_issues().issue:
        case = load_case(DEFAULT_FILE.parent / issue.case)
        assert set(issue.features) <= features(case), f"{issue.id}: its case lacks what it names"
        for check in others:
            bucket = Bucket(check, "train", "somewhere", "thunder with TE v2", "DelayedScaling")
            assert not issue.explains(case, bucket), f"{issue.id} hides {check}"


def test_the_first_issue_that_explains_is_taken(tmp_path: Path) -> None:
    second = ISSUE.replace('id = "one"', 'id = "two"')
    first = ISSUE.replace("Linear.*", "RMSNorm.*")
    found = issues(tmp_path, first + second).explaining(CASE, BUCKET, INSTALLED)
    assert found is not None
    assert found.id == "two"
    assert issues(tmp_path, "").issue == ()


def test_bad_files_are_refused(tmp_path: Path) -> None:
    assert "not TOML" in refusal(tmp_path, "[[issue")
    assert "`$.issue[0]`" in refusal(tmp_path, ISSUE.replace("title =", "name ="))
    assert "missing required field `title`" in refusal(tmp_path, ISSUE.replace('title = "a title"', ""))
    assert "Expected `array`" in refusal(tmp_path, ISSUE.replace('["layer:Checkpoint"]', '"layer:Checkpoint"'))
    message = refusal(tmp_path, ISSUE.replace('"gradient|output"', '"gradient("'))
    assert "issue 'one': bucket.check is no regular expression" in message
    message = refusal(tmp_path, ISSUE.replace(">=0.2.4,<0.2.7", "0.2.x"))
    assert "issue 'one': versions.lightning-thunder = '0.2.x' is no specifier" in message
    message = refusal(tmp_path, ISSUE.replace('"gradient|output"', '".*"'))
    assert "issue 'one': bucket.check = '.*' would hide whatever is found: name the checks" in message
    message = refusal(tmp_path, ISSUE.replace("lightning-thunder", "lightning-thundr"))
    assert "versions name 'lightning-thundr'; known are transformer_engine, lightning-thunder, torch" in message
    message = refusal(tmp_path, ISSUE.replace("https://example.org/1", "example.org"))
    assert "url 'example.org' is neither a URL nor a document below docs/" in message
    assert "issue 'one' is there 2 times" in refusal(tmp_path, ISSUE + ISSUE)
    with pytest.raises(CaseError, match=r"absent\.toml: cannot be read \(No such file"):
        load_known_issues(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(CaseError, match=r"latin\.toml: not TOML"):
        load_known_issues(tmp_path / "latin.toml")


def test_features_name_what_a_case_has() -> None:
    assert {"layer:Checkpoint", "layer:Linear", "recipe:DelayedScaling", "step:train", "rank:2"} <= features(CASE)
    assert "equal layers in a row" not in features(CASE)
    assert "equal layers in a row" in features(Case(layers=(Checkpoint(body=(LINEAR, LINEAR)),)))
    assert "nested region" in features(Case(layers=(Checkpoint(body=(Checkpoint(body=()),)),)))
    assert "executor:torch" not in features(CASE)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((Checkpoint(body=(LINEAR, MUL)),), True),
        ((Checkpoint(body=(Checkpoint(body=(MUL,)),)), ExtraOutput()), True),
        ((Checkpoint(body=(LINEAR, InPlace(operation="relu_"))),), False),
        ((Checkpoint(body=(MUL, LINEAR)),), False),
        ((Checkpoint(body=(LINEAR, MUL)), LINEAR), False),
        ((Checkpoint(body=()),), False),
        ((MUL,), False),
    ],
)
def test_operation_in_place_that_ends_a_checkpoint_and_the_model(layers: Any, expected: bool) -> None:
    """Exactly the models for which Thunder applies it twice (docs/findings.md, checkpoint-in-place)."""
    named = features(Case(layers=layers, input=Input(requires_grad=True)))
    assert ("checkpoint that ends the model in place" in named) is expected
