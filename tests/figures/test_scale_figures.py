"""Optimum, regret, choice of a base and routers against scale."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_store import SWEEP, stored
from looks import drawn_texts, plain, unlabeled
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from planted_sweeps import Planted, plant
from there import of, there

from hpxfer.analysis import Analysis, Finding, Found, TransferReport, analyze, report_line
from hpxfer.analysis.statistics.base_choice import COLUMNS as BASE_COLUMNS
from hpxfer.analysis.statistics.routers import (
    ABSOLUTE,
    ENTROPY,
    LOAD,
    LOGITS,
    MARGIN,
    MOVED,
    RELATIVE,
    ROUTERS,
    SPREAD,
    UPDATE,
)
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.figures.base_choice import base_choice_block
from hpxfer.figures.broken_axis import BrokenAxis
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.optimum import OptimumLine, line_of, optimum_block, regret_block
from hpxfer.figures.routers import routers_block
from hpxfer.verdict.thresholds import REGRET_SHARE

KIND = Planted(noise=0.001, num_points=9, seeds=3)


def line(drift: float, *, seed: int = 0, kind: Planted = KIND, name: str = "completep-moe") -> pd.DataFrame:
    """Return a line whose optimum moves by `drift` octaves per doubling, upward or downward."""
    return plant(Planted(**{**vars(kind), "drift": drift}), seed).frame(parameterization=name)


def report_on(*lines: pd.DataFrame) -> TransferReport:
    return report_line(pd.concat(lines), sweep="planted", hp="lr")


BOTH = report_on(line(0.0), line(0.5, name="sp"))


def optimum(report: TransferReport) -> Block:
    return of(Block, optimum_block(report, "width"))


def lines_of(report: TransferReport) -> list[OptimumLine]:
    return [line_of(finding) for finding in report.findings]


def regret(report: TransferReport) -> Block:
    return of(Block, regret_block(report, "width"))


def test_optima_stand_with_their_intervals_by_scale_the_control_last() -> None:
    table = optimum(BOTH).table()
    assert list(dict.fromkeys(table["parameterization"])) == ["completep-moe", "sp"]
    first = table[table["parameterization"] == "completep-moe"]
    assert first["width"].to_list() == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert (first["low_log2"] < first["log2_hp"]).all()
    assert (first["log2_hp"] < first["high_log2"]).all()


def test_the_fitted_line_goes_through_the_optima() -> None:
    """And not the one of another slope: the center is where the fit has the least error."""
    for fit in lines_of(BOTH):
        slope = there(fit.drift).octaves_per_doubling
        left, wrong = (
            [y - fit.fitted(math.log2(scale), by) for scale, y, _ in fit.points] for by in (slope, slope + 0.5)
        )
        assert abs(float(np.mean(left))) < 0.05
        assert float(np.std(left)) < 0.15 < float(np.std(wrong))


def test_the_title_tells_the_drift_with_its_interval() -> None:
    title = optimum(BOTH).title
    slope = there(next(finding.drift for finding in BOTH.findings if finding.parameterization == "sp"))
    assert title.startswith("Drift of the best lr along width, in octaves per doubling: completep-moe ")
    assert f"sp {slope.octaves_per_doubling:+.2f}" in title


def test_a_bound_is_kept_as_one_and_drawn_as_an_arrow() -> None:
    cut = line(0.0)
    middle = float(np.median(cut["value"]))
    info = optimum(report_on(cut[cut["value"] <= middle / 2]))
    assert set(info.table()["kind"]) == {"upper_edge"}
    assert "unknown" in info.title
    figure = draw(info)
    figure.draw_without_rendering()
    arrows = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 5


def test_optima_off_a_line_have_no_drift_and_misfits_are_said() -> None:
    findings = tuple(
        replace(
            finding,
            drift=None if finding.drift is None else replace(finding.drift, is_line=False),
            shapes=tuple(replace(shape, optimum=replace(shape.optimum, misfit=2.3)) for shape in finding.shapes),
        )
        for finding in BOTH.findings
    )
    info = optimum(replace(BOTH, findings=findings))
    assert "completep-moe not a line" in info.title
    assert info.table()["octaves_per_doubling"].isna().all()
    assert "2.3 times" in info.caption
    assert "fitted drift" not in drawn_texts(draw(info))
    good = replace(BOTH, findings=tuple(well_fitted(finding) for finding in BOTH.findings))
    assert "Cells scatter" not in optimum(good).caption


def well_fitted(finding: Finding) -> Finding:
    """Return a finding about whose fits cells scatter no more than seeds do."""
    shapes = tuple(replace(shape, optimum=replace(shape.optimum, misfit=None)) for shape in finding.shapes)
    return replace(finding, shapes=shapes)


def test_regrets_are_the_findings_and_the_limit_is_a_share_of_the_loss() -> None:
    info = regret(BOTH)
    shown = info.table().groupby("parameterization", sort=False)["regret_nats"].apply(list)
    for finding in BOTH.findings:
        assert shown[finding.parameterization] == [shape.regret_nats for shape in finding.shapes]
        assert shown[finding.parameterization][0] == 0
    limits = next(
        line for line in draw(info).axes[0].lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 5
    )
    losses = [[shape.best_loss or 0.0 for shape in finding.shapes] for finding in BOTH.findings]
    shown_limits = [10.0 ** float(y) for y in limits.get_ydata()]
    assert shown_limits == pytest.approx([REGRET_SHARE * max(pair) for pair in zip(*losses, strict=True)])
    worst = max(shape.regret_nats or 0 for shape in BOTH.findings[1].shapes)
    assert f"sp up to {worst:.2g} nats" in info.title


def test_a_transferred_hp_that_diverges_is_said_and_has_no_number() -> None:
    hot = line(0.5, name="sp")
    hot["status"] = hot["status"].where((hot["scale"] < 16) | (hot["value"] < 2.0**-9), "diverged")
    hot["loss"] = hot["loss"].where(hot["status"] == "finished")
    info = regret(report_on(hot))
    last = info.table().iloc[-1]
    assert (pd.isna(last["regret_nats"]), last["diverged"]) == (True, True)
    assert info.title.endswith("sp diverges at width 16")
    assert "diverged" in drawn_texts(draw(info))
    assert "diverged" not in drawn_texts(draw(regret(BOTH)))


def test_the_axis_of_regrets_is_a_log_with_a_break_for_zero() -> None:
    broken = BrokenAxis(low=0.001, high=1.0)
    assert [broken.at(nats) for nats in (1.0, 0.1, 0.001)] == pytest.approx([0.0, -1.0, -3.0])
    assert broken.at(0.0) == broken.at(-0.02) == broken.at(0.0009) == broken.zero
    assert broken.zero < broken.break_at < -3.0


def test_a_regret_below_zero_is_none_measured_and_keeps_its_error() -> None:
    """The fit's best cell is not always that of the lowest mean: what is transferred may have been luckier."""
    first = BOTH.findings[0]
    lucky = replace(first.shapes[-1], regret_nats=-0.02, regret_low_nats=-0.04, regret_high_nats=0.01)
    findings = (replace(first, shapes=(*first.shapes[:-1], lucky)), *BOTH.findings[1:])
    (axes,) = draw(regret(replace(BOTH, findings=findings))).axes
    assert "none\nmeasured" in [text.get_text() for text in axes.get_yticklabels()]
    assert "up to" not in regret(replace(BOTH, findings=findings[:1])).title
    zero = axes.get_yticks()[0]
    bars = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 2]
    assert any(list(bar) == pytest.approx([zero, -2.0]) for bar in bars), "from zero up to 0.01 nats"


def tuned_at(scale: float, loss: float | None, verdict: str | None, **more: Any) -> dict[str, Any]:
    return {
        "axis": "width",
        "parameterization": "mup",
        "hp": "lr",
        "scale_name": "width",
        "advice": ADVICE,
        "shape": f"w{scale:g}",
        "scale": scale,
        "tuned_value": 2.0**-6,
        "verdict": verdict,
        "loss_given_up_nats": loss,
        "loss_given_up_low": None if loss is None else loss - 0.005,
        "loss_given_up_high": None if loss is None else loss + 0.005,
        "limit_nats": 0.03,
        "tuning_flops": 1e12 * scale**2,
        "diverges": False,
        "recommended": scale == 64,
        **more,
    }


ADVICE = "tune at width 64, not at width 32, as lr transfers from there"
BASES = (
    tuned_at(32, 0.12, "drifts"),
    tuned_at(64, 0.01, "transfers"),
    tuned_at(128, 0.0, "transfers"),
    tuned_at(256, 0.0, None),
)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(stored(tmp_path_factory.mktemp("planted"), SWEEP))


def choice_or_why(analysis: Analysis, *rows: dict[str, Any], unknown: tuple[tuple[str, str], ...] = ()) -> Block | str:
    found = Found(frame=frame_of(rows, BASE_COLUMNS), unknown=unknown)
    return base_choice_block(replace(analysis, statistics={"bases": found}), "lr", "width")


def choice(analysis: Analysis, *rows: dict[str, Any]) -> Block:
    return of(Block, choice_or_why(analysis, *rows))


def marks(figure: Figure, panel: int) -> list[Line2D]:
    """Return the marks of the bases and their rings: single points with a marker."""
    return [
        line
        for line in figure.axes[panel].lines
        if np.asarray(line.get_xdata()).size == 1 and line.get_marker() != "None"
    ]


def test_the_title_is_the_advice(analysis: Analysis) -> None:
    assert plain(choice(analysis, *BASES).title) == f"Base for lr along width: with mup, {ADVICE}"


def test_filled_marks_transfer_and_a_ring_marks_the_recommended_base(analysis: Analysis) -> None:
    figure = draw(choice(analysis, *BASES))
    assert {"loss given up at width 256", "FLOPs of tuning there (log scale)", "limit of the verdict"} <= drawn_texts(
        figure
    )
    assert not unlabeled(figure)
    for panel in (0, 1):
        drawn = marks(figure, panel)
        rings = [mark for mark in drawn if mark.get_markersize() > 10]
        assert [list(np.asarray(mark.get_xdata())) for mark in rings] == [[6.0]]
        inside = [mark.get_markerfacecolor() for mark in drawn if mark not in rings]
        assert [color == "none" for color in inside] == [True, False, False, False]


def test_a_base_whose_hp_diverges_stands_in_a_strip_of_its_own(analysis: Analysis) -> None:
    info = choice(analysis, tuned_at(32, None, "drifts", diverges=True), *BASES[1:])
    assert "diverged" in drawn_texts(draw(info))


def test_without_flops_there_is_no_panel_of_costs(analysis: Analysis) -> None:
    info = choice(analysis, *({**base, "tuning_flops": None} for base in BASES))
    assert len(draw(info).axes) == 1
    assert not {"Left", "Right"} & set(re.findall(r"\w+", info.caption))


def test_a_table_without_a_base_says_why(analysis: Analysis) -> None:
    why = "sp has no base: nothing scales with it"
    assert choice_or_why(analysis, unknown=(("width sp lr", why),)) == why


def router_line(
    name: str, quantity: str, means: tuple[float, ...], when: str = "end", se: float | None = 0.01, **given: Any
) -> list[dict[str, Any]]:
    """Return a row per shape, and one per layer of it."""
    of = {"axis": "width", "parameterization": name, "hp": "lr", "scale_name": "width", "unit": "1", "step": 99}
    of |= {"quantity": quantity, "when": when, "seeds": 3, "diverged_seeds": 0, **given}
    return [
        {**of, "scale": float(scale), "is_base": scale == 32, "layer": layer, "value": value, "se": error}
        for scale, mean in zip((32, 64, 128), means, strict=False)
        for layer, value, error in ((None, mean, se), (0, mean - 0.01, None), (1, mean + 0.01, None))
    ]


ENTROPIES = (router_line("sp", ENTROPY, (0.8, 0.6, 0.4)), router_line("mup", ENTROPY, (0.8, 0.81, 0.805)))


def routers(*lines: list[dict[str, Any]]) -> Block:
    found = Found(frame=frame_of((row for line in lines for row in line), ROUTERS.columns))
    return of(Block, routers_block(found, "width"))


def panels(block: Block) -> list[tuple[str, list[str]]]:
    """Return each panel that is drawn, with its parameterizations."""
    rows = there(block.drawn)
    (chart,) = block.charts
    return [
        (name, list(dict.fromkeys(rows[rows["quantity"] == name]["parameterization"]))) for name in chart.values(rows)
    ]


def test_the_title_says_what_is_seen() -> None:
    title = routers(*ENTROPIES).title
    assert title == (
        "Router entropy as a share of log M at the end of training, from width 32 to 128: mup 0.8 and 0.81, no sure "
        "change, sp falls from 0.8 to 0.4"
    )
    one_seed = [[{**row, "se": None} for row in line] for line in ENTROPIES]
    assert routers(*one_seed).title.count("no sure change") == 2
    assert routers(router_line("sp", LOAD, (0.5,))).title.endswith("in fair shares, at the end of training: sp 0.5")
    only_start = router_line("sp", ENTROPY, (1.0, 1.0), "start")
    assert routers(only_start).title == "Routers along width"


def test_panels_and_their_data() -> None:
    update = router_line("sp", RELATIVE, (0.1, 0.2, 0.4), exponent=1.0, exponent_low=0.9, exponent_high=1.1)
    zero = router_line("mup", UPDATE, (0.1, 0.05, 0.02))
    info = routers(*ENTROPIES, update, router_line("sp", UPDATE, (1.0, 1.0, 1.0)), zero)
    assert panels(info) == [
        (ENTROPY, ["mup", "sp"]),
        (RELATIVE, ["sp"]),
        (UPDATE, ["mup"]),
    ]
    table = info.table()
    assert len(table) == 5 * 3 * 3, "a row for the mean and one for each of two layers"
    assert set(table["layer"].dropna()) == {0, 1}
    figure = draw(info)
    figure.draw_without_rendering()  # a warning is an error
    texts = drawn_texts(figure)
    assert "sp: exponent +1.00 [+0.90, +1.10]" in texts


def test_what_is_equal_everywhere_or_drawn_already_has_no_panel() -> None:
    means = (0.01, 1.0, 10.0)
    logits = [router_line("sp", quantity, means) for quantity in (LOGITS, SPREAD)]
    even = [{**row, "value": 0.0} for row in router_line("sp", LOAD, means)]
    info = routers(*ENTROPIES, even, *logits)
    assert panels(info) == [(ENTROPY, ["mup", "sp"]), (LOGITS, ["sp"])]
    assert panels(routers(*logits, router_line("mup", SPREAD, means)))[1:] == [(SPREAD, ["mup", "sp"])]
    assert isinstance(routers_block(Found(frame=frame_of(even, ROUTERS.columns)), "width"), str)


def test_a_power_law_has_a_log_axis_also_if_it_starts_at_zero() -> None:
    zero = [{**row, "value": 0.0} for row in router_line("sp", LOGITS, (1.0, 1.0, 1.0), "start")]
    (axes,) = draw(routers(router_line("sp", LOGITS, (0.02, 1.0, 10.0)), zero)).axes
    assert axes.get_yscale() == "log"
    assert 0.001 < axes.get_ylim()[0] < 0.02


def test_a_margin_may_be_negative() -> None:
    """A balancing rule may choose against the logits."""
    margins = (-0.3, -0.2, -0.1)
    figure = draw(routers(router_line("sp", MARGIN, margins)))
    low, high = figure.axes[0].get_ylim()
    assert low < min(margins)
    assert max(margins) < high


def test_a_router_that_starts_at_zero_has_its_distance_in_absolute_numbers() -> None:
    moved = [
        router_line("sp", MOVED, (1.0, 2.0)),
        router_line("sp", ABSOLUTE, (0.1, 0.1)),
        router_line("mup", ABSOLUTE, (0.2, 0.1)),
    ]
    assert panels(routers(*moved)) == [
        (MOVED, ["sp"]),
        (ABSOLUTE, ["mup"]),
    ]
