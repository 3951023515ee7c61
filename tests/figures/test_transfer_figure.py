"""The transfer figure: what it shows is tested as data, the drawing only for being written, whole and equal."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from figure_store import SWEEP, stored
from looks import drawn_texts

from hpxfer.analysis import report_line
from hpxfer.figures import Panel, TransferInfo, draw_transfer, save_transfer, style, taus_of, transfer_info

WIDTHS = (32.0, 64.0, 128.0)
ZERO = tuple(3 - 0.1 * doublings + 0.05 * 2.9**2 + 0.01 for doublings in range(3))  # losses where 2^-9 is 0


def planted(axes: tuple[str, ...] = ("width",), labels: tuple[str, ...] = ("completep-moe", "sp")) -> pd.DataFrame:
    """Return a line: optima at 2^-6.1; those of sp fall an octave a doubling. Two octaves above them all diverges."""
    rows = []
    for axis in axes:
        for label in labels:
            for doublings, scale in enumerate(WIDTHS):
                for exponent in range(-9, -3):
                    off = exponent + 6.1 + (doublings if label == "sp" else 0)
                    for seed in range(3):
                        diverged = off > 2 or (off > 1 and seed == 2)
                        rows.append(
                            {
                                "axis": axis,
                                "scale_name": axis,
                                "scale": scale,
                                "shape": f"{axis}{scale:g}",
                                "is_base": doublings == 0,
                                "parameterization": label,
                                "value": 2.0**exponent,
                                "seed": seed,
                                "loss": math.nan if diverged else 3 - 0.1 * doublings + 0.05 * off**2 + 0.01 * seed,
                                "status": "diverged" if diverged else "finished",
                            }
                        )
    return pd.DataFrame(rows)


def info_of(frame: pd.DataFrame) -> TransferInfo:
    return transfer_info(report_line(frame, sweep="planted", hp="lr"), frame)


def panel_of(frame: pd.DataFrame, label: str) -> Panel:
    return next(panel for panel in info_of(frame).panels if panel.parameterization == label)


def test_one_panel_a_parameterization_one_row_an_axis() -> None:
    info = info_of(planted(axes=("width", "depth")))
    assert [[(panel.axis, panel.parameterization) for panel in row] for row in info.rows] == [
        [("depth", "completep-moe"), ("depth", "sp")],
        [("width", "completep-moe"), ("width", "sp")],
    ]
    assert (info.x_label, info.judged.words, info.judged.unit) == ("log2 lr (octaves)", "validation loss", "nats")


@pytest.mark.parametrize(
    ("axes", "labels", "title"),
    [
        (("width",), ("completep-moe", "sp"), "width: completep-moe transfers, sp drifts"),
        (("width",), ("completep-moe",), "width: completep-moe transfers (no control)"),
        (("width", "depth"), ("completep-moe", "sp"), "2 axes: completep-moe transfers along all; sp drifts along all"),
        (("width", "depth"), ("completep-moe",), "2 axes: completep-moe transfers along all (no control)"),
    ],
)
def test_the_verdicts_are_the_head(axes: tuple[str, ...], labels: tuple[str, ...], title: str) -> None:
    assert info_of(planted(axes, labels)).title == f"planted: lr along {title}"


def test_series_hold_means_ranges_and_diverged_values() -> None:
    base, _, top = panel_of(planted(), "sp").series
    assert (base.name, base.scale, top.name) == ("32 (base)", 32.0, "128")
    assert base.x == (-9.0, -8.0, -7.0, -6.0, -5.0)
    assert base.censored == (-4.0,)
    at = base.x.index(-6.0)
    assert (base.y_min[at], base.y[at], base.y_max[at]) == pytest.approx((3.0005, 3.0105, 3.0205))
    last = base.x.index(-5.0)  # one of three seeds diverged: the median is the higher of the two others
    assert (base.y_min[last], base.y[last], base.y_max[last]) == pytest.approx((3.0605, 3.0705, 3.0705))
    assert top.censored == (-6.0, -5.0, -4.0)


def test_optima_are_marked_and_bounds_are_marked_as_bounds() -> None:
    frame = planted(labels=("sp",))
    marks = [shape.optimum for shape in panel_of(frame, "sp").series if shape.optimum]
    assert [mark.kind for mark in marks] == ["interior"] * 3
    assert all(mark.x_low is not None for mark in marks)
    top = panel_of(frame, "sp").series[-1]
    found = report_line(frame, sweep="planted", hp="lr").findings[0].shapes[-1].optimum
    assert top.optimum is not None
    assert (top.optimum.x, top.optimum.x_low, top.optimum.x_high) == (
        found.log2_value,
        found.low_log2,
        found.high_log2,
    )
    assert min(top.y) <= top.optimum.y <= min(top.y) + 0.05
    cut = planted()
    bound = panel_of(cut[cut["value"] <= 2.0**-7], "completep-moe").series[-1].optimum
    assert bound is not None
    assert (bound.kind, bound.x) == ("upper_edge", -7.0)


def fitted(frame: pd.DataFrame) -> TransferInfo:
    """Return the figure of findings that have a fitted curve and a lowest measured mean at every shape."""
    found = report_line(frame, sweep="planted", hp="lr")
    curve = ((-7.0, 3.1), (-6.0, 2.7), (-5.0, 3.3))
    filled = [
        replace(
            finding,
            shapes=tuple(
                replace(
                    shape,
                    curve=curve,
                    lowest_value=2.0**-7,
                    lowest_loss=3.1,
                    optimum=replace(shape.optimum, misfit=2.3),
                )
                for shape in finding.shapes
            ),
        )
        for finding in found.findings
    ]
    return transfer_info(replace(found, findings=tuple(filled)), frame)


def test_a_star_lies_on_its_curve_and_the_lowest_mean_is_marked() -> None:
    info = fitted(planted(labels=("completep-moe",)))
    for shape in info.panels[0].series:
        assert shape.optimum is not None
        assert shape.curve
        assert shape.lowest == (-7.0, 3.1)
        assert shape.optimum.y == pytest.approx(np.interp(shape.optimum.x, *zip(*shape.curve, strict=True)))
        assert info.panels[0].y_low < shape.optimum.y, "a star below all dots is on the picture"
    assert {"fitted curve", "lowest measured mean"} <= texts(info)
    assert "completep-moe at width 32 2.3 times" in info.caption
    plain = info_of(planted(labels=("completep-moe",)))
    assert not {"fitted curve", "lowest measured mean"} & texts(replace(plain, panels=tuple(bare(plain.panels))))


def bare(panels: tuple[Panel, ...]) -> list[Panel]:
    """Return panels without curves and without the lowest measured means."""
    return [
        replace(panel, series=tuple(replace(shape, curve=(), lowest=None) for shape in panel.series))
        for panel in panels
    ]


def test_the_transferred_hp_is_the_base_s_best_on_the_grid() -> None:
    panels = info_of(planted()).panels
    assert [panel.transferred_log2 for panel in panels] == [-6.0, -6.0]
    nothing = info_of(planted().assign(is_base=False)).panels
    assert [panel.transferred_log2 for panel in nothing] == [None, None]


def test_a_row_shares_limits_in_which_every_optimum_is_seen() -> None:
    panels = info_of(planted()).panels
    assert len({(panel.x_low, panel.x_high, panel.y_low, panel.y_top, panel.y_high) for panel in panels}) == 1
    for panel in panels:
        assert panel.y_top < panel.y_high  # the strip for diverged HPs
        for shape in panel.series:
            assert shape.optimum is not None
            assert panel.y_low < shape.optimum.y < panel.y_top


def test_a_blown_up_loss_goes_off_scale_and_flattens_nothing() -> None:
    frame = planted()
    blown = frame["loss"].where(frame["value"] != 2.0**-9, 500.0 + frame["seed"])
    plain, hot = info_of(frame).panels[0], info_of(frame.assign(loss=blown)).panels[0]
    assert max(hot.series[0].y) == 501.0  # kept as data
    assert hot.y_top - hot.y_low < 3 * (plain.y_top - plain.y_low)


def test_no_strip_without_divergence_and_no_mark_without_an_optimum() -> None:
    frame = planted()
    calm = frame[frame["value"] <= 2.0**-6]
    panel = panel_of(calm[calm["scale"] < 128], "completep-moe")
    assert panel.y_high == panel.y_top
    few = panel_of(frame[frame["value"] <= 2.0**-8], "completep-moe")
    assert all(shape.optimum is None for shape in few.series)


def texts(info: TransferInfo) -> set[str]:
    figure = draw_transfer(info)
    legends = [*figure.legends, *(axes.legend_ for axes in figure.axes if axes.legend_)]
    labels = {text.get_text() for legend in legends for text in (*legend.get_texts(), legend.get_title())}
    axes_texts = {t for axes in figure.axes for t in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())}
    return {" ".join(text.split()) for text in labels | axes_texts}


def test_the_drawing_names_scales_units_marks_and_the_conclusion() -> None:
    shown = texts(info_of(planted()))
    assert {
        "width",
        "32 (base)",
        "64",
        "128",
        "log2 lr (octaves)",
        "validation loss (nats)",
        "diverged",
        "range of seeds",
    } <= shown
    assert "sp: drifts (diverges at width 128)" in shown
    assert "at the grid's edge: optimum beyond" not in shown
    assert "off scale" not in texts(info_of(planted(labels=("completep-moe",)).query("value > 0.005")))


def test_it_draws_ragged_rows_and_nothing_at_all() -> None:
    info = info_of(planted(("width", "depth")))
    ragged = draw_transfer(replace(info, panels=info.panels[:-1]))
    ragged.draw_without_rendering()
    assert len(ragged.axes) == 3
    empty = info_of(planted().iloc[:0])
    assert empty.panels == ()
    draw_transfer(empty).draw_without_rendering()


@pytest.mark.slow
def test_equal_infos_give_equal_files_and_nothing_else(tmp_path: Path) -> None:
    first = save_transfer(info_of(planted()), tmp_path / "a" / "new")
    second = save_transfer(info_of(planted().sample(frac=1.0, random_state=1)), tmp_path / "b")
    assert [path.name for path in first] == ["transfer.png", "transfer.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["transfer.png", "transfer.svg"]
    ElementTree.parse(first[1])
    other = save_transfer(info_of(planted(labels=("sp",))), tmp_path / "b")
    assert other[1].read_bytes() != first[1].read_bytes()


@pytest.mark.slow
def test_no_pyplot() -> None:
    code = "import sys, hpxfer.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_control_far_above_does_not_flatten_the_row() -> None:
    """The range is that around the optima compared, stretched by half at most; legend and caption name what is off."""
    frame = planted()
    alone = panel_of(frame[frame["parameterization"] != "sp"], "completep-moe")
    far = info_of(frame.assign(loss=frame["loss"] + 5.0 * (frame["parameterization"] == "sp")))
    for panel in far.panels:
        assert panel.y_top - panel.y_low <= 1.5 * (alone.y_top - alone.y_low) * (1 + 1e-9)
    assert "A triangle is a loss off scale." in far.caption


def test_axes_are_gathered_by_verdict() -> None:
    still = planted(("depth", "experts"), ("completep-moe",))
    frame = pd.concat([still, planted(), still.assign(parameterization="sp")])
    assert info_of(frame).title == (
        "planted: lr along 3 axes: completep-moe transfers along all; "
        "sp drifts along width, transfers along depth, experts"
    )


def test_zero_is_a_dashed_line_in_the_color_of_its_shape() -> None:
    frame = planted()
    frame.loc[frame["value"] == 2.0**-9, "value"] = 0.0
    info = info_of(frame)
    ours = info.panels[0]
    assert [shape.off_axis for shape in ours.series] == [((0.0, pytest.approx(y)),) for y in ZERO]
    assert ours.y_low < min(ZERO) < max(ZERO) <= ours.y_top
    table = info.table()
    assert len(table[table["log2_hp"] == -math.inf]) == 6
    figure = draw_transfer(info)
    assert "HP 0" in drawn_texts(figure)
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == pytest.approx(ZERO)  # type: ignore[index]
    assert [line.get_color() for line in dashed] == style.ramp(3)


WEIGHT_DECAY = (
    SWEEP.replace("lr: {log2: [-9, -3]}", "weight_decay: {log2: [-4, 0]}")
    .replace("  init_scale: {log2: [-1, 1]}\n", "")
    .replace("judge: {hp: lr", "judge: {hp: weight_decay")
    .replace("granularity: [1, 2, 4]", "duration: [200, 400]")
)


def test_tau_is_a_second_axis_over_weight_decay(tmp_path: Path) -> None:
    """Tau is 200 steps at an LR of 2^-6, times the decay: what the axis above shows at a decay of 1."""
    arms = "[completep-moe, {table: completep-moe, conventions: {weight_decay: independent}}]"
    results = stored(tmp_path, WEIGHT_DECAY.replace("[completep-moe, sp]", arms))
    line = results.line()
    taus = taus_of(results, line, "weight_decay")
    assert {key: tau.holds for key, tau in taus.items()} == {
        ("width", "completep-moe"): True,
        ("width", "completep-moe[weight_decay=independent]"): False,  # the LR falls with the width, the decay does not
        ("duration", "completep-moe"): False,  # more steps
        ("duration", "completep-moe[weight_decay=independent]"): False,
    }
    assert {tau.per_decay for tau in taus.values()} == {200 / 64}
    info = transfer_info(report_line(line, sweep="planted", hp="weight_decay"), line, taus)
    figure = draw_transfer(info)
    texts = drawn_texts(figure)
    tops = [top for axes in figure.axes for top in axes.child_axes]
    assert {top.get_xlabel() for top in tops} == {"log2 tau (octaves)", "log2 tau at the base (octaves)"}
    assert "Tau is steps x LR x weight decay" in info.caption
    for axes in figure.axes:
        assert axes.child_axes[0].get_xlim() == pytest.approx(np.array(axes.get_xlim()) + math.log2(200 / 64))
    assert not taus_of(results, line, "lr")
    assert not taus_of(None, line, "weight_decay")
    assert "validation loss (nats)" in texts
