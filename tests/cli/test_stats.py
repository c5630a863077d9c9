"""What ``tefuzz stats`` counts."""

from __future__ import annotations

from harness.case import Case, Checkpoint, Input, Jit, Linear, Precision, Residual, Step
from harness.commands.stats import IMPORTANT, _report
from harness.features import features
from tests.cli.support import tefuzz


def _without_rate(output: str) -> list[str]:
    return output.splitlines()[1:]


def test_a_seed_decides_what_is_drawn() -> None:
    first, again, other = (tefuzz("stats", "-n", "60", "--seed", seed) for seed in ("1", "1", "2"))
    assert [first.exit_code, again.exit_code, other.exit_code] == [0, 0, 0]
    assert first.stdout.startswith("60 cases drawn with seed 1, ")
    assert _without_rate(first.stdout) == _without_rate(again.stdout)
    assert _without_rate(first.stdout) != _without_rate(other.stdout)


def test_every_subject_is_drawn() -> None:
    output = tefuzz("stats", "-n", "180").stdout
    counts = {line.split()[2]: int(line.split()[0]) for line in output.splitlines() if ":" in line and "%" in line}
    assert counts["executor:transformer_engine"] == 60
    assert counts["executor:transformer_engine_v1"] == 40
    assert counts["executor:torch"] == 30


def test_rare_features_and_pairs_are_marked() -> None:
    often = frozenset({"frozen", "step:eval"})
    drawn = [often] * 198 + [often | {"layer:Checkpoint"}] * 2
    lines = list(_report(drawn))
    assert "     200 100.00%  frozen" in lines
    assert "       2   1.00%  layer:Checkpoint" in lines, "1 of 100 is no rare feature"
    assert "       0   0.00%  layer:Residual  RARE" in lines, "what is never drawn is shown"
    pairs = lines[lines.index("\nthe rarest pairs of the ten most important features:") + 1 :]
    assert len(pairs) == 10
    assert all(line.startswith("       0   0.00%") and line.endswith("RARE") for line in pairs)


def test_pairs_are_ordered_by_rarity() -> None:
    everything = frozenset(IMPORTANT)
    lines = list(_report([everything] * 99 + [everything - {"frozen"}]))
    pairs = lines[lines.index("\nthe rarest pairs of the ten most important features:") + 1 :]
    assert sum("frozen" in line and line.startswith("      99  99.00%") for line in pairs) == 9
    assert pairs[-1].startswith("     100 100.00%")


def test_the_important_features_can_all_occur_in_one_case() -> None:
    body = (Linear(out_features=64, frozen=("weight",)),) * 2
    case = Case(
        layers=(Residual(body=body), Checkpoint(body=body)),
        input=Input(requires_grad=True),
        precision=Precision(recipe_object="new_each_step"),
        steps=(Step(), Step(mode="no_grad"), Step(mode="eval", batch=(32,))),
        jit=Jit(cache="no caching"),
    )
    assert set(IMPORTANT) <= features(case)
    assert len(set(IMPORTANT)) == 10
