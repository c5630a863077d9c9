"""Pages: escaping, size, programs that do not show the bug, and the plots at their limits."""

from __future__ import annotations

import math
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from harness.device import activate

activate()

from harness.report import folder, plots  # noqa: E402
from harness.report.measures import Measure, StateSeries, measures  # noqa: E402
from harness.report.shrinking import History, Size  # noqa: E402
from harness.report.templates import code, fenced  # noqa: E402
from harness.report.trial import Trial  # noqa: E402
from tests.report.support import judged, parsed  # noqa: E402

HOSTILE = "</pre><script>alert('x')</script>\"&'<img src=x onerror=alert(1)> ```"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a report in which all foreign text is hostile, and whose program shows nothing."""
    monkeypatch.setattr(folder, "run_program", lambda _program, _finding: Trial(0, HOSTILE, f"it says {HOSTILE}"))
    judgement, reverts = judged("fuser")
    (subject,) = folder.subjects([judgement])
    monkeypatch.setattr(subject.finding, "message", HOSTILE)
    environment = replace(activate(), device_name=HOSTILE, versions=(("torch", HOSTILE),))
    shrunk = History((Size(1, 9, 2, 500, HOSTILE), Size(7, 1, 1, 100, HOSTILE)), 9, 3.0)
    return folder.write_report(tmp_path, subject, environment, reverts, [HOSTILE], shrunk).folder


def test_all_text_is_escaped(hostile: Path) -> None:
    root = parsed(hostile / "report.html")
    assert [e.tag for e in root.iter() if e.tag in ("script", "img")] == []
    text = "".join(root.itertext())
    assert text.count(HOSTILE) >= 9
    assert "How the case shrank" in text


def test_an_interrupt_leaves_no_half_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "run_program", lambda _program, _finding: Trial(1, "", None))
    judgement, reverts = judged("fuser")
    (subject,) = folder.subjects([judgement])

    def interrupted(*_arguments: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder, "page", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.write_report(tmp_path, subject, activate(), reverts)
    assert list(tmp_path.iterdir()) == []
    written = folder.write_report(tmp_path, subject, activate(), reverts, ["first"]).folder
    with monkeypatch.context() as patch:
        patch.setattr(folder, "page", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.write_report(tmp_path, subject, activate(), reverts, ["second"])
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    assert "first" in (written / "report.md").read_text()
    folder.write_report(tmp_path, subject, activate(), reverts, ["second"])
    assert "second" in (written / "report.md").read_text(), "a later report takes the place of the first"


def test_paths_are_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "run_program", lambda program, _finding: Trial(1, f'File "{program}", line 1', None))
    judgement, reverts = judged("fuser")
    (subject,) = folder.subjects([judgement])
    text = (folder.write_report(tmp_path, subject, activate(), reverts).folder / "report.md").read_text()
    assert 'File "transformer_engine/pytorch/ops/fuser.py", line' in text
    assert 'File "harness/subjects/base.py", line' in text
    assert 'File "repro.py", line 1' in text
    assert 'File "/' not in text


def test_a_program_that_shows_nothing_is_said_first(hostile: Path) -> None:
    markdown = (hostile / "report.md").read_text()
    assert markdown.startswith("**The program below does not show this bug by itself:")
    body = next(iter(parsed(hostile / "report.html").iter("body")))
    assert "does not show this bug" in "".join(body[0].itertext())


def test_markdown_fences_cannot_be_closed_from_inside() -> None:
    assert fenced("a\n````\nb").startswith("`````\n")
    assert code("a `` b") == "``` a `` b ```"
    assert code("two\nlines") == "`two lines`"


def test_long_traces_are_cut_until_the_page_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "run_program", lambda _program, _finding: Trial(1, "", None))
    judgement, reverts = judged("caching")
    (subject,) = folder.subjects([judgement])
    full = folder.write_report(tmp_path / "full", subject, activate(), reverts).folder / "report.html"
    monkeypatch.setattr(folder, "MAX_BYTES", full.stat().st_size - 1)
    cut = folder.write_report(tmp_path / "cut", subject, activate(), reverts).folder / "report.html"
    assert cut.stat().st_size < full.stat().st_size
    assert "lines left out" in cut.read_text()
    assert "<mark>get_te_fp8_state" in cut.read_text(), "what the finding is about is kept"


def test_the_smallest_case_of_a_bucket_is_reported() -> None:
    judgement, _ = judged("caching")
    assert len(folder.subjects([judgement, judgement])) == 1
    other = judgement.verdict.findings[-1].bucket
    for name in (str(other), other.digest):
        (subject,) = folder.subjects([judgement], name)
        assert subject.finding.bucket == other
    (subject,) = folder.subjects([judgement], "0123456789")
    assert subject.finding is judgement.verdict.findings[0]


def test_errors_are_measured_against_the_bound() -> None:
    exact = {(m.step, m.name): m for m in measures(judged("caching")[0].verdict.run)}
    assert not exact[0, "output"].failed
    assert exact[0, "output"].ulp == 0
    wrong = exact[1, "output"]
    assert wrong.failed
    assert wrong.allowed_ulp == 0
    # Spacings of float32 and of E4M3, which has 20 fewer mantissa bits.
    assert wrong.fp8_steps is not None
    assert wrong.ulp == pytest.approx(wrong.fp8_steps * 2**20)
    bounded = {m.name: m for m in measures(judged("sigmoid-gradient-nan")[0].verdict.run)}
    assert bounded["gradient of 0.weight"].ulp == math.inf
    assert 0 < bounded["output"].ulp < bounded["output"].allowed_ulp


def test_plots_take_extreme_values() -> None:
    many = [Measure(i, "output", 1.0, v, None, 0.0, v > 1, "") for i, v in enumerate([0.0, 1e-30, 1e30, math.inf] * 20)]
    assert len(plots.shown_measures(many)) == plots.MAX_ROWS
    picture = xml.etree.ElementTree.fromstring(plots.error_plot(many))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == plots.MAX_ROWS
    series = StateSeries("linear 0, input", (0, 1), ((None, math.inf), (1.0, 1.0)), ((0.0, 0.0), (None, None)))
    assert "nan" not in plots.state_plot(series).lower()
    xml.etree.ElementTree.fromstring(plots.state_plot(series))
