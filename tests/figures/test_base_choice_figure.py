"""The figure of the choice of a base: what it says, which marks are filled, and what it leaves out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from figure_store import SWEEP, planted_results
from looks import drawn_texts, plain, unlabeled
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis, analyze
from hpxfer.figures.base_choice import BaseChoiceInfo, base_choice_info, draw_base_choice
from hpxfer.figures.broken_axis import broken_axis
from hpxfer.verdict.bases import BaseReading, TunedAt


def row(scale: float, loss: float | None, verdict: str | None, **more: float) -> TunedAt:
    return TunedAt(
        shape=f"w{scale:g}",
        scale=scale,
        tuned_value=2.0**-6,
        verdict=verdict,  # type: ignore[arg-type]
        transfer_chance=None,
        loss_given_up_nats=loss,
        loss_given_up_low=None if loss is None else loss - 0.005,
        loss_given_up_high=None if loss is None else loss + 0.005,
        limit_nats=0.03,
        tuning_flops=1e12 * scale**2,
        **more,
    )


READING = BaseReading(
    axis="width",
    parameterization="mup",
    hp="lr",
    scale_name="width",
    bases=(row(32, 0.12, "drifts"), row(64, 0.01, "transfers"), row(128, 0.0, "transfers"), row(256, 0.0, None)),
    trend="shrinking",
    transfers_from="width 64",
    recommended="width 64",
    in_brief="width 64, steps shrinking",
    advice="tune at width 64, not at width 32, as lr transfers from there",
)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(planted_results(tmp_path_factory.mktemp("planted"), SWEEP))


def info_of(analysis: Analysis, *readings: BaseReading) -> BaseChoiceInfo | str:
    return base_choice_info(replace(analysis, statistics={"bases": readings}), "lr", "width")


def shown(analysis: Analysis, *readings: BaseReading) -> BaseChoiceInfo:
    info = info_of(analysis, *readings)
    assert isinstance(info, BaseChoiceInfo)
    return info


def marks(figure: Figure, panel: int) -> list[Line2D]:
    """Return the marks of the bases and their rings: single points with a marker."""
    return [
        line
        for line in figure.axes[panel].lines
        if np.asarray(line.get_xdata()).size == 1 and line.get_marker() != "None"
    ]


def test_the_title_is_the_advice_and_the_table_holds_every_base(analysis: Analysis) -> None:
    info = shown(analysis, READING)
    assert plain(info.title) == f"Base for lr along width: with mup, {READING.advice}"
    table = info.table()
    assert table["recommended"].to_list() == [False, True, False, False]
    assert table["loss_given_up_nats"].to_list() == [0.12, 0.01, 0.0, 0.0]
    assert table["tuning_flops"].to_list() == [1e12 * 32**2, 1e12 * 64**2, 1e12 * 128**2, 1e12 * 256**2]


def test_filled_marks_transfer_and_a_ring_marks_the_recommended_base(analysis: Analysis) -> None:
    figure = draw_base_choice(shown(analysis, READING))
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
    lost = replace(READING.bases[0], loss_given_up_nats=math.inf, loss_given_up_low=None, loss_given_up_high=None)
    info = shown(analysis, replace(READING, bases=(lost, *READING.bases[1:])))
    assert info.table()["diverged"].to_list() == [True, False, False, False]
    assert "diverged" in drawn_texts(draw_base_choice(info))


def test_costs_that_are_not_known_are_named(analysis: Analysis) -> None:
    bases = tuple(replace(each, tuning_flops=None) for each in READING.bases)
    assert "not known" in drawn_texts(draw_base_choice(shown(analysis, replace(READING, bases=bases))))


def test_a_table_without_a_base_is_left_out_and_alone_it_says_why(analysis: Analysis) -> None:
    control = BaseReading(
        axis="width", parameterization="sp", hp="lr", why_not="sp has no base: nothing scales with it"
    )
    assert shown(analysis, control, READING).readings == (READING,)
    assert info_of(analysis, control) == "sp has no base: nothing scales with it"


def test_a_planted_sweep_has_the_figure(analysis: Analysis) -> None:
    info = base_choice_info(analysis, "lr", "width")
    assert isinstance(info, BaseChoiceInfo)
    (reading,) = info.readings
    assert (reading.parameterization, reading.recommended) == ("completep-moe", "width 32")
    draw_base_choice(info).draw_without_rendering()


def test_the_broken_axis_shows_zero_below_all_that_was_measured() -> None:
    broken = broken_axis([0.0, 0.02, None, 0.5, math.inf])
    assert broken.zero < broken.break_at < broken.at(0.02) < broken.at(0.5) < broken.strip
    assert broken.at(0.0) == broken.at(-0.01) == broken.zero
