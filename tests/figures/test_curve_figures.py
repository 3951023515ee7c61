"""Collapse and load balance, from hand-made analyses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from looks import drawn_texts, plain, unlabeled

from hpxfer.analysis.statistics.collapse import Collapse, CollapseCurve
from hpxfer.analysis.statistics.load_balance import BalanceLine, LoadBalance
from hpxfer.figures.balance import BalanceInfo, balance_info, draw_balance
from hpxfer.figures.collapse import CollapseInfo, collapse_info, draw_collapse, normalized_info

STEPS = (1.0, 3.0, 5.0, 7.0)
WHOLE = Collapse(
    axis="width",
    scale_name="width",
    parameterization="completep-moe",
    hp="lr",
    value=0.0625,
    steps=STEPS,
    curves=(
        CollapseCurve(shape="w32", scale=32.0, is_base=True, losses=(4, 3, 2.5, 2.25), normalized=(2, 1)),
        CollapseCurve(shape="w64", scale=64.0, is_base=False, losses=(4, 3, 2.375, 2.0), normalized=(2, 1)),
        CollapseCurve(shape="w128", scale=128.0, is_base=False, losses=(4, 3), diverged_step=5),
    ),
    spread_nats=(0.01, 0.01, 0.125, 0.25),
    noise_nats=(0.02, 0.02, 0.02, 0.02),
    parts_at=5.0,
    shares=(0.5, 1.0),
    floor_nats=1.5,
    floor_from="the power law",
    deviation=(0.1, 0.0),
    noise_floor=(0.2, 0.1),
    below_noise=0.75,
    num_seeds=3,
)
CONTROL = replace(WHOLE, parameterization="sp", parts_at=None)
PLACE = {"axis": "width", "scale_name": "width", "hp": "lr"}


def shown(*found: Collapse) -> CollapseInfo:
    info = collapse_info(found, "width")
    assert isinstance(info, CollapseInfo)
    return info


def test_the_title_tells_from_which_step_shapes_part() -> None:
    title = shown(CONTROL, WHOLE).title
    assert title.startswith("Training losses of width 32 to 128 at one lr part")
    assert title.endswith("beyond the seeds' noise: completep-moe from step 5, sp at no step")
    bare = shown(replace(WHOLE, noise_nats=(), parts_at=None, why_no_noise="one seed"))
    assert bare.title.endswith("completep-moe unknown (one seed)")


def test_the_step_of_parting_is_marked_and_only_then() -> None:
    assert "how far apart the 2 curves are: more than seeds from step 5" in drawn_texts(draw_collapse(shown(WHOLE)))
    calm = drawn_texts(draw_collapse(shown(CONTROL)))
    assert not any("from step" in text for text in calm)
    assert "apart by more than seeds" not in calm
    share = drawn_texts(draw_collapse(shown(replace(CONTROL, parts_by_share_at=7.0))))
    assert "how far apart the 2 curves are: more than 1% of the loss from step 7" in share


def test_a_collapse_says_what_is_compared() -> None:
    found = shown(replace(WHOLE, value=2.0**-6))
    assert found.rows[0].title == "completep-moe: each width at lr 2^-6, mean of 3 seeds"
    assert found.caption.startswith("Compared are the training losses of all shapes at the same step")
    assert {"between shapes", "between seeds alone"} <= drawn_texts(draw_collapse(found))


def test_curves_are_those_of_the_analysis_and_one_that_diverged_ends_there() -> None:
    (row,) = shown(WHOLE).rows
    assert [line.name for line in row.lines] == ["32 (base)", "64", "128"]
    assert row.lines[1].y == (4, 3, 2.375, 2.0)
    assert (row.lines[2].x, row.lines[2].diverged_step) == ((1.0, 3.0), 5)
    table = shown(WHOLE).table()
    assert len(table) == 10
    assert table["training loss (nats)"].iloc[3] == 2.25
    assert table["from seeds alone"].to_list() == [0.02] * 10


def test_normalized_curves_come_with_their_floor() -> None:
    info = normalized_info([WHOLE, CONTROL], "width")
    assert isinstance(info, CollapseInfo)
    assert "1.5 nats (the power law)" in info.caption
    assert "completep-moe for 75% of training" in info.title
    assert [len(row.lines) for row in info.rows] == [2, 2]
    assert info.rows[0].lines[0].y == (2, 1)
    assert "normalized loss (1 = final)" in drawn_texts(draw_collapse(info))  # a spread of 0 has no log


def test_without_curves_the_reason_is_kept() -> None:
    nothing = Collapse(**PLACE, parameterization="a", why_not="1 shapes have whole curves, 2 are needed")
    assert collapse_info([nothing], "width") == "1 shapes have whole curves, 2 are needed"
    assert normalized_info([nothing], "width") == "1 shapes have whole curves, 2 are needed"
    assert isinstance(collapse_info([WHOLE], "depth"), str)


@pytest.mark.parametrize("seeds", [(), WHOLE.noise_nats])
def test_the_drawing_of_a_collapse_names_its_axes(seeds: tuple[float, ...]) -> None:
    figure = draw_collapse(shown(replace(WHOLE, noise_nats=seeds), CONTROL))
    assert {"step", "training loss (nats)", "standard deviation (nats)", "width"} <= drawn_texts(figure)
    assert not unlabeled(figure)
    assert len(figure.axes) == 4


def load(scale: float, value: float, final: float, *, peak: float = 0.2) -> BalanceLine:
    return BalanceLine(
        shape=f"w{scale:g}",
        scale=scale,
        is_base=scale == 32,
        value=value,
        fair_share=0.25,
        steps=(0, 10),
        max_deviation=(peak, final),
        peak=peak,
        final=final,
        num_seeds=2,
        num_diverged=0,
    )


BALANCE = LoadBalance(
    **PLACE,
    parameterization="sp",
    lines=(load(64, 0.25, 0.1), load(64, 0.125, 0.05), load(32, 0.125, 0.025), load(32, 0.0, 0.5)),
)


def test_loads_are_in_fair_shares_by_scale_and_hp() -> None:
    info = balance_info([BALANCE], "width")
    assert isinstance(info, BalanceInfo)
    base, wide = info.panels[0].series
    assert (base.name, base.x, base.final) == ("32 (base)", (-3.0,), (0.1,))  # an HP of 0 has no log
    assert (wide.x, wide.final, wide.peak) == ((-3.0, -2.0), (0.2, 0.4), (0.8, 0.8))
    assert info.title.endswith("sp 0.4 at width 64, lr 2^-2")
    assert len(info.table()) == 3


def test_the_drawing_of_loads_names_scales_and_axes() -> None:
    info = balance_info([BALANCE, replace(BALANCE, parameterization="a", lines=BALANCE.lines[:1])], "width")
    assert isinstance(info, BalanceInfo)
    figure = draw_balance(info)
    named = {"log2 lr (octaves)", "load deviation (fair shares)", "32 (base)", "64", plain(info.title)}
    assert named <= drawn_texts(figure)
    colors = [figure.axes[i].lines[-1].get_color() for i in (0, 1)]
    assert colors[0] == colors[1], "a scale has one color, whichever scales a panel has"
    assert not unlabeled(figure)


def test_rules_of_balance_are_compared_by_the_title_and_a_panel_each() -> None:
    arms = {"sp": 0.1, "sp (sign)": 0.05, "sp (none)": 0.2, "sp (loss)": 0.15}
    loads = [replace(BALANCE, parameterization=name, lines=(load(32, 0.125, end),)) for name, end in arms.items()]
    info = balance_info(loads, "width")
    assert isinstance(info, BalanceInfo)
    least, most = "least with sp (sign) 0.2 at width 32", "most with sp (none) 0.8 at width 32"
    assert f"{least}, lr 2^-3; {most}, lr 2^-3" in info.title
    figure = draw_balance(info)
    assert set(arms) <= drawn_texts(figure)
    assert len({axes.get_ylim() for axes in figure.axes if axes.lines}) == 1


def test_no_loads_no_figure() -> None:
    dense = LoadBalance(**PLACE, parameterization="a", why_not="no shape has experts")
    assert balance_info([dense], "width") == "no shape has experts"
    unknown = replace(BALANCE, lines=tuple(replace(line, peak=None, final=None) for line in BALANCE.lines))
    assert isinstance(balance_info([unknown], "width"), str)
