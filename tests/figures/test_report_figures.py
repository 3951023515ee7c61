"""Optimum and regret against scale, from the findings of planted lines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from looks import drawn_texts, plain, unlabeled
from planted_sweeps import Planted, plant
from there import there

from hpxfer.analysis import Finding, TransferReport, report_line
from hpxfer.figures.broken_axis import BrokenAxis
from hpxfer.figures.optimum import OptimumInfo, draw_optimum, optimum_info
from hpxfer.figures.regret import RegretInfo, draw_regret, regret_info
from hpxfer.verdict.thresholds import REGRET_SHARE

KIND = Planted(noise=0.001, num_points=9, seeds=3)


def line(drift: float, *, seed: int = 0, kind: Planted = KIND, name: str = "completep-moe") -> pd.DataFrame:
    """Return a line whose optimum moves by `drift` octaves per doubling, upward or downward."""
    return plant(Planted(**{**vars(kind), "drift": drift}), seed).frame(parameterization=name)


def report(*lines: pd.DataFrame) -> TransferReport:
    return report_line(pd.concat(lines), sweep="planted", hp="lr")


BOTH = report(line(0.0), line(0.5, name="sp"))


def optimum(of: TransferReport) -> OptimumInfo:
    info = optimum_info(of, "width")
    assert isinstance(info, OptimumInfo)
    return info


def regret(of: TransferReport) -> RegretInfo:
    info = regret_info(of, "width")
    assert isinstance(info, RegretInfo)
    return info


def test_optima_stand_with_their_intervals_by_scale_the_control_last() -> None:
    first, last = optimum(BOTH).lines
    assert (first.parameterization, last.parameterization) == ("completep-moe", "sp")
    assert [scale for scale, *_ in first.points] == [1.0, 2.0, 4.0, 8.0, 16.0]
    for _, y, found in first.points:
        assert there(found.low_log2) < y < there(found.high_log2)


def test_the_fitted_line_goes_through_the_optima() -> None:
    """And not the one of another slope: the center is where the fit has the least error."""
    for fit in optimum(BOTH).lines:
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
    info = optimum(report(cut[cut["value"] <= middle / 2]))
    assert {at.kind for line in info.lines for *_, at in line.points} == {"upper_edge"}
    assert "unknown" in info.title
    figure = draw_optimum(info)
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
    info = optimum_info(replace(BOTH, findings=findings), "width")
    assert isinstance(info, OptimumInfo)
    assert "completep-moe not a line" in info.title
    assert all(line.slope is None for line in info.lines)
    assert "2.3 times" in info.caption
    assert "fitted drift" not in drawn_texts(draw_optimum(info))
    good = replace(BOTH, findings=tuple(well_fitted(finding) for finding in BOTH.findings))
    assert "Cells scatter" not in optimum(good).caption


def well_fitted(finding: Finding) -> Finding:
    """Return a finding about whose fits cells scatter no more than seeds do."""
    shapes = tuple(replace(shape, optimum=replace(shape.optimum, misfit=None)) for shape in finding.shapes)
    return replace(finding, shapes=shapes)


def test_no_optimum_no_figure() -> None:
    few = line(0.0)
    few = few[few["value"] <= sorted(set(few["value"]))[1]]
    assert optimum_info(report(few), "width") == "no shape along width has an optimum of lr"
    assert "no shape along depth" in str(optimum_info(BOTH, "depth"))


def test_regrets_are_the_findings_and_the_limit_is_a_share_of_the_loss() -> None:
    info = regret(BOTH)
    assert info.findings == tuple(BOTH.findings)
    shown = info.table().groupby("parameterization", sort=False)["regret_nats"].apply(list)
    for finding in BOTH.findings:
        assert shown[finding.parameterization] == [shape.regret_nats for shape in finding.shapes]
        assert shown[finding.parameterization][0] == 0
    limits = next(line for line in draw_regret(info).axes[0].lines if line.get_label() == "limit of the verdict")
    losses = [[shape.best_loss or 0.0 for shape in finding.shapes] for finding in BOTH.findings]
    shown_limits = [10.0 ** float(y) for y in limits.get_ydata()]
    assert shown_limits == pytest.approx([REGRET_SHARE * max(pair) for pair in zip(*losses, strict=True)])
    worst = max(shape.regret_nats or 0 for shape in info.findings[1].shapes)
    assert f"sp up to {worst:.2g} nats" in info.title


def test_a_transferred_hp_that_diverges_is_said_and_has_no_number() -> None:
    hot = line(0.5, name="sp")
    hot["status"] = hot["status"].where((hot["scale"] < 16) | (hot["value"] < 2.0**-9), "diverged")
    hot["loss"] = hot["loss"].where(hot["status"] == "finished")
    info = regret(report(hot))
    last = info.table().iloc[-1]
    assert (pd.isna(last["regret_nats"]), last["diverged"]) == (True, True)
    assert info.title.endswith("sp diverges at width 16")
    assert "diverged" in drawn_texts(draw_regret(info))
    assert "diverged" not in drawn_texts(draw_regret(regret(BOTH)))


def test_the_axis_of_regrets_is_a_log_with_a_break_for_zero() -> None:
    broken = BrokenAxis(low=0.001, high=1.0)
    assert [broken.at(nats) for nats in (1.0, 0.1, 0.001)] == pytest.approx([0.0, -1.0, -3.0])
    assert broken.at(0.0) == broken.at(-0.02) == broken.at(0.0009) == broken.zero
    assert broken.zero < broken.break_at < -3.0


def test_a_regret_below_zero_is_none_measured_and_keeps_its_error() -> None:
    """The fit's best cell is not always that of the lowest mean: what is transferred may have been luckier."""
    info = regret(BOTH)
    first = info.findings[0]
    lucky = replace(first.shapes[-1], regret_nats=-0.02, regret_low_nats=-0.04, regret_high_nats=0.01)
    findings = (replace(first, shapes=(*first.shapes[:-1], lucky)), *info.findings[1:])
    found = replace(info, findings=findings)
    (axes,) = draw_regret(found).axes
    assert "none\nmeasured" in [text.get_text() for text in axes.get_yticklabels()]
    assert "up to" not in regret_title(findings[0])
    zero = axes.get_yticks()[0]
    bars = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 2]
    assert any(list(bar) == pytest.approx([zero, -2.0]) for bar in bars), "from zero up to 0.01 nats"


def regret_title(finding: Finding) -> str:
    found = regret_info(replace(BOTH, findings=(finding,)), "width")
    assert isinstance(found, RegretInfo)
    return found.title


def test_every_regret_with_an_error_has_its_bar() -> None:
    info = regret(BOTH)
    known = [shape for shape in info.shapes if shape.regret_se_nats]
    (axes,) = draw_regret(info).axes
    bars = [line for line in axes.lines if line.get_marker() == "_"]
    assert len(known) == len(bars) > 0


def test_a_parameterization_known_at_the_base_alone_has_no_regret() -> None:
    frame = line(0.0, name="sp")
    frame["status"] = frame["status"].where(frame["is_base"], "missing")
    frame["loss"] = frame["loss"].where(frame["is_base"])
    assert regret(report(line(0.0), frame)).title.endswith("sp unknown")


def test_nothing_transferred_no_figure() -> None:
    assert regret_info(report(line(0.0).assign(is_base=False)), "width") == (
        "no shape along width has a result at a transferred lr"
    )


def test_tables_hold_every_point() -> None:
    table = optimum(BOTH).table()
    assert len(table) == 10
    assert list(table.columns[:3]) == ["axis", "parameterization", "width"]
    assert regret(BOTH).table()["regret_nats"].to_list() == [
        shape.regret_nats for finding in BOTH.findings for shape in finding.shapes
    ]


def test_the_drawings_name_their_axes_and_what_they_show() -> None:
    for figure, label in (
        (draw_optimum(optimum(BOTH)), "log2 of the best lr (octaves)"),
        (draw_regret(regret(BOTH)), "loss given up (nats, log scale)"),
    ):
        assert {label, "width (log scale)", "completep-moe", "sp"} <= drawn_texts(figure)
        assert not unlabeled(figure)
    assert plain(optimum(BOTH).title) in drawn_texts(draw_optimum(optimum(BOTH)))


def test_one_shape_alone_draws() -> None:
    alone = report(line(0.0).query("scale == 1"))
    draw_optimum(optimum(alone)).draw_without_rendering()
    assert regret_info(alone, "width") == "no shape along width beyond the base"
