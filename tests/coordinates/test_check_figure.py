"""The figure of a check: what it shows is tested as data, the drawing for being written, whole and equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_fits import FIT, report

from hpxfer.coordinates.figure import COLORS, check_info, draw_check
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.write import write_check
from hpxfer.errors import HpxferError

START = replace(FIT, quantity="activation", step=0, slope=-0.5, predicted=-0.5)
MADE = report(
    START,
    replace(START, step=1, slope=-0.4, predicted=None, verdict="no prediction"),
    FIT,
    replace(FIT, step=2, slope=0.9, low=0.8, high=1.0, verdict="miss"),
    replace(FIT, role="moe", slope=None, low=None, high=None, verdict="zero"),
    replace(FIT, layer=0, slope=5.0),
)


def test_a_panel_a_role_a_series_a_quantity() -> None:
    info = check_info(MADE, MADE.axes[0])
    assert [(panel.role, [series.quantity for series in panel.series]) for panel in info.panels] == [
        ("router", ["activation", "change"])
    ]
    change = info.panels[0].series[1]
    assert (change.steps, change.slopes, change.predicted, change.missed) == ((1, 2), (0.01, 0.9), (0.0, 0.0), (2,))
    assert info.panels[0].series[0].predicted == (-0.5, None)
    assert info.title == "mup along width, adam: FAILED (1 ok, 1 missed, 0 unclear)"
    assert info.y_label == "exponent of width"


def test_the_limits_hold_slopes_and_predictions_and_no_single_layer() -> None:
    info = check_info(MADE, MADE.axes[0])
    assert info.y_low < -0.5
    assert 0.9 < info.y_high < 2
    flat = report(FIT)
    calm = check_info(flat, flat.axes[0])
    assert calm.y_high - calm.y_low > 1


def texts(made: CheckReport) -> set[str]:
    figure = draw_check(check_info(made, made.axes[0]))
    figure.draw_without_rendering()
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_the_legend_names_what_is_there() -> None:
    assert texts(MADE) == {"activation", "change", "predicted", "no prediction (thin)", "miss"}
    assert texts(report(FIT)) == {"change", "predicted"}
    assert "other" in texts(report(replace(FIT, quantity="df/dphi")))


def test_every_quantity_of_a_published_check_has_a_name_of_its_own_in_the_legend() -> None:
    published = Path(__file__).parents[2] / "results" / "published" / "check"
    files = list(published.glob("*/check.json"))
    axes = [axis for file in files for axis in json.loads(file.read_text())["axes"]]
    assert files
    assert {fit["quantity"] for axis in axes for fit in axis["judged"]} <= set(COLORS)


def test_it_draws_nothing_at_all() -> None:
    empty = report(replace(FIT, slope=None, low=None, high=None, verdict="zero"))
    assert check_info(empty, empty.axes[0]).panels == ()
    assert texts(empty) == set()


def test_equal_reports_give_equal_files(tmp_path: Path) -> None:
    first, second = (write_check(MADE, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["check.txt", "check.json", "check-width.png", "check-width.svg"]
    assert [path.read_bytes() for path in first[2:]] == [path.read_bytes() for path in second[2:]]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HpxferError, match=r"the check cannot be written: .*; choose another folder with --output"):
        write_check(MADE, tmp_path / "file")
