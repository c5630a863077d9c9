"""``tefuzz mutants``: what it lists, resumes, prints and answers with its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.case import Case, Input, Linear
from harness.commands import mutants as command
from harness.mutants import MUTANTS, Mutant
from harness.mutants.campaign import Limits
from harness.mutants.results import Result, append_result, is_finished, read_results, table
from tests.cli.support import tefuzz

KILLED, OTHER = MUTANTS["v2-bias-lost"], MUTANTS["grad-rsqrt-sign"]
EQUIVALENT = MUTANTS["v2-saved-twice"]
CASE = Case(layers=(Linear(out_features=64),), input=Input(batch=(2, 8)))


def result(mutant: Mutant, outcome: str = "killed", *, by: str = "", max_examples: int = 300) -> Result:
    case = CASE if outcome == "killed" else None
    return Result(
        mutant=mutant.name,
        digest=mutant.digest,
        outcome=outcome,  # type: ignore[arg-type]
        by=by or ("output" if outcome == "killed" else ""),
        max_examples=max_examples,
        examples=3,
        case=case,
    )


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that a campaign was started for; every mutant but ``OTHER`` is killed."""
    names: list[str] = []

    def campaign(
        todo: Sequence[Mutant], _limits: Limits, _workers: int, _command: object, report: Callable[[Result], None]
    ) -> None:
        for mutant in todo:
            names.append(mutant.name)
            report(result(mutant, "survived" if mutant in (OTHER, EQUIVALENT) else "killed"))

    monkeypatch.setattr(command, "run_campaign", campaign)
    return names


def test_one_real_mutant_is_killed_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    arguments = ("mutants", KILLED.name, "--workers", "1", "--max-examples", "20", "--results", file)
    first = tefuzz(*arguments)
    assert first.exit_code == 0, first.output
    assert "[1/1] v2-bias-lost: killed by output after 1 example" in first.stdout
    kept = read_results(file)[KILLED.name]
    assert (kept.outcome, kept.by, kept.digest) == ("killed", "output", KILLED.digest)
    assert kept.case == Case(layers=(Linear(out_features=64),))
    again = tefuzz(*arguments)
    assert again.exit_code == 0
    assert "1 mutant done before" in again.stdout
    assert "[1/1]" not in again.stdout
    assert again.stdout.splitlines()[-3:] == first.stdout.splitlines()[-3:]


def test_what_is_done_is_not_done_again(tmp_path: Path, searched: list[str]) -> None:
    file = tmp_path / "results.jsonl"
    append_result(file, result(KILLED))
    assert tefuzz("mutants", KILLED.name, OTHER.name, "--results", file).exit_code == 1
    assert searched == [OTHER.name]
    assert tefuzz("mutants", KILLED.name, "--again", "--results", file).exit_code == 0
    assert searched == [OTHER.name, KILLED.name]


def test_all_mutants_without_a_name(tmp_path: Path, searched: list[str]) -> None:
    assert tefuzz("mutants", "--results", tmp_path / "results.jsonl").exit_code == 1
    assert searched == list(MUTANTS)


def test_an_equivalent_mutant_need_not_be_killed(tmp_path: Path, searched: list[str]) -> None:
    done = tefuzz("mutants", EQUIVALENT.name, "--results", tmp_path / "results.jsonl")
    assert done.exit_code == 0
    assert EQUIVALENT.equivalent in done.stdout
    assert searched == [EQUIVALENT.name]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def campaign(
        _todo: object, _limits: object, _workers: int, _command: object, report: Callable[[Result], None]
    ) -> None:
        report(result(KILLED))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_campaign", campaign)
    file = tmp_path / "results.jsonl"
    done = tefuzz("mutants", KILLED.name, OTHER.name, "--results", file)
    assert done.exit_code == 130
    assert done.stdout.endswith("1 mutants: 1 killed, 0 equivalent, 0 left to explain\n")
    assert list(read_results(file)) == [KILLED.name]


def test_the_list_names_all() -> None:
    listed = tefuzz("mutants", "--list")
    assert listed.exit_code == 0
    assert all(f"{name}: {mutant.title}" in listed.stdout for name, mutant in MUTANTS.items())
    assert tefuzz("mutants", "--list", KILLED.name).stdout.count("expected:") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("v2-bias-loss",), "did you mean 'v2-bias-lost'?"),
        (("--max-examples", "0"), "is not in the range"),
        (("--workers", "0"), "is not in the range"),
        (("--time-box", "soon"), "is not a valid float range"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str, searched: list[str]) -> None:
    done = tefuzz("mutants", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert searched == []


def test_a_cut_off_line_is_passed_over_and_the_last_result_counts(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    assert read_results(file) == {}
    append_result(file, result(KILLED, "survived"))
    append_result(file, result(KILLED))
    with file.open("ab") as lines:
        lines.write(b'{"mutant":"grad-rs')
    assert read_results(file) == {KILLED.name: result(KILLED)}


def test_which_results_answer_for_a_mutant() -> None:
    assert is_finished(KILLED, result(KILLED, max_examples=5), 300)
    assert is_finished(KILLED, result(KILLED, "survived"), 300)
    assert not is_finished(KILLED, None, 300)
    assert not is_finished(KILLED, result(KILLED, "error"), 300)
    assert not is_finished(KILLED, result(KILLED, "survived", max_examples=5), 300)
    assert not is_finished(KILLED, result(OTHER), 300), "of another mutant, or of one that was changed since"


def test_survivors_are_last_and_in_capitals() -> None:
    results = {
        OTHER.name: result(OTHER, "survived"),
        EQUIVALENT.name: result(EQUIVALENT, "survived"),
        KILLED.name: result(KILLED),
        "v1-bias-lost": result(MUTANTS["v1-bias-lost"], "error", by="not applied"),
    }
    header, first, second, *rest, count = table(MUTANTS.values(), results)
    assert header.split() == ["mutant", "killed", "by", "examples", "seconds", "executions", "shrunk", "to"]
    assert first.startswith("v2-bias-lost")
    assert first.endswith('Linear(64→64) {"input":{"batch":[2,8]}}')
    assert second.startswith("v2-saved-twice")
    assert {line.split()[0] for line in rest} == {"GRAD-RSQRT-SIGN", "V1-BIAS-LOST"}
    assert count == "4 mutants: 1 killed, 1 equivalent, 2 left to explain"
