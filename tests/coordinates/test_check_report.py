"""What a report says of made-up fits, and its figure: tested as data, and the drawing for being whole and equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpxfer.coordinates.drawing import draw
from hpxfer.coordinates.figure import COLORS, check_page
from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.write import write_check
from hpxfer.errors import HpxferError

FIT = Fit(
    quantity="change",
    role="router",
    layer=None,
    step=1,
    slope=0.01,
    low=-0.02,
    high=0.04,
    predicted=0.0,
    verdict="ok",
    scales=(32.0, 64.0),
    magnitudes=(0.5, 0.51),
    source="a paper",
)
MISS, UNCLEAR = replace(FIT, verdict="miss"), replace(FIT, verdict="unclear")
NOTHING = replace(FIT, verdict="no prediction", predicted=None)
ZERO = replace(FIT, slope=None, low=None, high=None, predicted=None, verdict="zero", magnitudes=(0.0, 0.0))
PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "check"


def report(*fits: Fit) -> CheckReport:
    scales = {"axis": "width", "scale_name": "width", "scales": (32.0, 64.0), "shapes": ("w32", "w64")}
    axis = AxisReport(**scales, warnings=("careful",), fits=fits, stability=fits)  # type: ignore[arg-type]
    asked = {"parameterization": "mup", "source": "a paper", "optimizer": "adam", "architecture": "gpt"}
    return CheckReport(**asked, steps=2, seeds=3, tolerance=0.15, axes=(axis,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fits", "verdict", "step", "shown"),
    [
        # As bad as its worst step; what is shown is the last step with a prediction; single layers are not judged.
        ((FIT, replace(MISS, step=2), replace(FIT, step=3)), "miss", 2, 3),
        ((FIT, replace(UNCLEAR, step=2)), "unclear", 2, 2),
        ((replace(FIT, step=0), NOTHING), "ok", 0, 0),
        ((FIT, replace(MISS, layer=1)), "ok", 1, 1),
    ],
)
def test_how_a_quantity_is_judged(fits: tuple[Fit, ...], verdict: str, step: int, shown: int) -> None:
    (judged,) = report(*fits).axes[0].judged
    assert (judged.verdict, judged.step, judged.shown.step) == (verdict, step, shown)


def test_an_interval_is_shown_with_its_reason_and_a_miss_is_as_far_as_its_nearer_end() -> None:
    between = replace(FIT, slope=-0.2, predicted=0.0, least=-0.5, source="tokens may not align")
    near = replace(between, role="attn_v", slope=-0.7, low=-0.7, high=-0.7, verdict="miss")
    text = report(between, near, replace(MISS, role="moe", slope=0.3)).table()
    assert "-0.50 .. +0.00  ok" in text
    assert "an interval is predicted, because\n  attn_v change, router change: tokens may not align" in text
    assert "moe change grows as width^+0.30; attn_v change scales as width^-0.70, not -0.50 .. +0.00" in text


@pytest.mark.parametrize(
    ("fits", "passed", "says"),
    [
        ((FIT,), True, "width: passed"),
        ((FIT, replace(UNCLEAR, role="moe")), True, "width: passed"),
        ((NOTHING,), False, "nothing is predicted, so nothing was checked"),
        ((UNCLEAR,), False, "not shown"),
        ((NOTHING, replace(UNCLEAR, role="moe")), False, "not shown"),
        ((FIT, replace(MISS, role="moe")), False, "FAILED"),
    ],
)
def test_passing_needs_something_that_is_ok_and_only_what_missed_has_failed(
    fits: tuple[Fit, ...], passed: bool, says: str
) -> None:
    made = report(*fits)
    assert made.passed == passed
    assert says in made.table()
    assert ("FAILED" in made.table()) == any(fit.verdict == "miss" for fit in fits)


def test_the_table_says_it_all() -> None:
    missed = replace(MISS, role="expert_in", slope=0.5, low=0.4, high=0.6)
    wild = replace(MISS, role="moe", slope=None, low=None, high=None, magnitudes=(1.0, float("nan")))
    unknown = replace(NOTHING, role="stream", source="two parts")
    text = report(FIT, missed, replace(ZERO, role="expert_out"), wild, unknown).table()
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert rows["router"] == "router change 1 +0.01 -0.02 .. +0.04 +0.00 ok 0.5 0.51"
    assert rows["expert_in"] == "expert_in change 1 +0.50 +0.40 .. +0.60 +0.00 miss 0.5 0.51"
    assert rows["expert_out"] == "expert_out change 1 0 zero 0 0"
    assert rows["moe"] == "moe change 1 diverged +0.00 miss 1 nan"
    assert "warning: careful" in text
    assert "stream change: two parts" in text
    assert "width: the model follows the table: NO (2 miss, 1 ok, 1 no prediction, 1 zero)" in text
    assert text.endswith("width: FAILED")


def test_both_answers_must_be_yes() -> None:
    (axis,) = report(FIT).axes
    unstable = replace(axis, stability=(MISS,))
    assert (unstable.follows, unstable.stable, unstable.passed) == (True, False, False)
    assert unstable.answer == replace(axis, fits=(MISS,)).answer == "FAILED"


def test_the_data_is_json_and_numbers_that_are_none_are_null() -> None:
    made = report(FIT, replace(FIT, layer=0, magnitudes=(1.0, float("inf"))))
    parsed = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert parsed["axes"][0]["lines"][1]["magnitudes"] == [1.0, None]
    assert parsed["passed"] is True
    assert parsed["axes"][0]["judged"][0]["shown"]["slope"] == 0.01
    assert "lines" not in made.to_dict(lines=False)["axes"][0]


MADE = report(
    replace(FIT, quantity="activation", step=0, slope=-0.5, predicted=-0.5),
    replace(NOTHING, quantity="activation", slope=-0.4),
    FIT,
    replace(MISS, step=2, slope=0.9, low=0.8, high=1.0),
    replace(ZERO, role="moe"),
    replace(FIT, layer=0, slope=5.0),
)


def test_the_figure_has_a_panel_a_role_and_a_series_a_quantity() -> None:
    page = check_page(MADE, MADE.axes[0])
    ((panel,),) = page.rows
    assert (panel.title, [line.label for line in panel.lines]) == ("router", ["activation", "change"])
    start, change = panel.lines
    assert (change.x, change.y, change.predicted, change.crosses) == ((1, 2), (0.01, 0.9), (0.0, 0.0), (2,))
    assert (start.predicted, start.low, len(change.low)) == ((-0.5, None), (), 2)
    assert page.title == "mup along width, adam: FAILED (1 ok, 1 missed, 0 unclear)"
    assert panel.y_label == "exponent of width"
    # The limits hold slopes and predictions, and no single layer.
    low, high = draw(page).axes[0].get_ylim()
    assert low < -0.5
    assert 0.9 < high < 2
    low, high = draw(check_page(report(FIT), report(FIT).axes[0])).axes[0].get_ylim()
    assert high - low > 1
    between = report(replace(FIT, least=-0.5))
    assert [y for _, y in check_page(between, between.axes[0]).rows[0][0].guides] == [(-0.5, -0.5), (0.0, 0.0)]


def test_the_legend_names_what_is_there() -> None:
    def texts(made: CheckReport) -> set[str]:
        figure = draw(check_page(made, made.axes[0]))
        figure.draw_without_rendering()
        return {text.get_text() for legend in figure.legends for text in legend.get_texts()}

    assert texts(MADE) == {"activation", "change", "predicted", "no prediction (thin)", "miss"}
    assert "other" in texts(report(replace(FIT, quantity="df/dphi")))
    assert texts(report(ZERO)) == set()
    axes = [axis for file in PUBLISHED.glob("*/check.json") for axis in json.loads(file.read_text())["axes"]]
    assert axes
    assert {fit["quantity"] for axis in axes for fit in axis["judged"]} <= set(COLORS)


def test_equal_reports_give_equal_files_and_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    first, second = (write_check(MADE, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["check.txt", "check.json", "check-width.png", "check-width.svg"]
    assert [path.read_bytes() for path in first[2:]] == [path.read_bytes() for path in second[2:]]
    with pytest.raises(HpxferError, match=r"the check cannot be written: .*; choose another folder with --output"):
        write_check(MADE, tmp_path / "a" / "check.txt")
