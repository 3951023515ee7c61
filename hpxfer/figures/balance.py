"""Load balance: how far the most uneven expert is from its fair share, against the HP and over training.

Each arm has a row of panels, and all have one y-axis. So the rules of arms that balance differently stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.transferred import Curve, curves_by_trial
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, Look, draw
from hpxfer.figures.kinds import HPFigure, HPInput, Info
from hpxfer.figures.text import each, listed, octaves_of, rows_of, shape_name, why_no_rows
from hpxfer.figures.training import windows
from hpxfer.host import CONTROL, scale_text, value_text

X_MARGIN = 0.4  # octaves
MOST_IN_TITLE = 2  # arms; of more, the title names the two with the smallest and the largest deviation
MOST_VALUES = 6  # of the HP, whose curves are drawn
LOAD = "load deviation (fair shares)"
OF_SHAPE, OF_HP = "shape", "HP"  # what a curve over training is one of
NOTHING = "no shape with experts has a curve of its load"


def load_curves(
    rows: pd.DataFrame,
    curves_of: Mapping[Any, Sequence[Curve]],
    value_of: Mapping[str, float | None],
) -> pd.DataFrame:
    """Return load deviations over training, of every shape at one HP value and of the base at several.

    `rows` are those of the statistic `balance` along one axis, `curves_of` has the curves of all seeds of an arm, shape
    and HP value, and `value_of` the HP value that an arm transfers.
    """
    parts = []
    for row in each(rows):
        at_base = rows[(rows["parameterization"] == row.parameterization) & rows["is_base"]]["value"].sort_values()
        kept, _ = style.thinned(at_base.to_list(), at_base.to_list(), MOST_VALUES)
        kinds = [OF_SHAPE] if row.value == value_of.get(row.parameterization) else []
        kinds += [OF_HP] if row.is_base and row.value in kept else []
        runs = curves_of.get((row.parameterization, row.shape, row.value), ())
        for kind in kinds if runs else ():
            steps, load_SN = windows(list(runs))
            of = row._asdict() | {"peak": None, "final": None}
            parts.append(
                pd.DataFrame({**of, "line": kind, "step": steps, "deviation": load_SN.mean(0) / row.fair_share})
            )
    return pd.concat(parts, ignore_index=True) if parts else rows.head(0)


def balance_block(
    found: Found, axis: str, control: str | None = CONTROL, over: pd.DataFrame | None = None
) -> Block | str:
    """Return what the figure of one axis shows, or why there is none. `over` are its `load_curves`."""
    rows = rows_of(found, axis, control)
    rows = rows[(rows["value"] > 0) & rows["final"].notna()]
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    scale, hp = rows["scale_name"].iloc[0], rows["hp"].iloc[0]
    frame = rows.assign(x=np.log2(rows["value"].astype(float)))
    drawn = frame.reindex(columns=[*frame, "line", "step", "deviation"])
    if over is not None and len(over):
        drawn = pd.concat([drawn, over], ignore_index=True)
    top = max(1.08 * float(drawn[["final", "peak", "deviation"]].astype(float).max().max()), 0.05)
    x_ends = frame["x"].min() - X_MARGIN, frame["x"].max() + X_MARGIN
    shapes = frame.drop_duplicates("shape").sort_values("scale", kind="stable")
    color_of = style.scale_colors(shapes["scale"])

    def finish(axes: Axes) -> None:
        style.set_axes(axes, octaves_of(hp), LOAD, x_ends=x_ends, y_ends=(0, top))
        style.whole_octaves(axes)

    by_hp = Chart(
        x="x",
        lines=(
            Line(y="peak", look={"linestyle": "--", "linewidth": 1.1, "alpha": 0.7}, name="largest at any time"),
            Line(y="final", marker="o", look={"linewidth": 1.8, "markersize": 4}),
        ),
        color="shape",
        panel="parameterization",
        looks={row.shape: (color_of[row.scale], "o") for row in each(shapes)},
        names={row.shape: shape_name(row.scale, row.is_base) for row in each(shapes)},
        finish=lambda axes, *_: finish(axes),
    )
    charts = (by_hp, *_over_training(drawn, by_hp, hp, top))
    return Block(
        title=f"Largest load deviation at the end of training, in fair shares: {_most(frame, scale, hp)}",
        caption="The load of the expert that is furthest from its fair share, over all layers, in units of that share: "
        "at 1 an expert is never used, or gets twice its share. Solid lines show the mean over the last quarter of "
        "training, dashed lines the largest value at any time. All are means over seeds."
        + ("" if len(charts) == 1 else " Beside them is the load over training, as means over windows of 2% of it."),
        frame=rows if len(charts) == 1 else drawn.drop(columns="x"),
        drawn=drawn,
        charts=charts,
        foot=0.5,
        legend_columns=6,
        legend_title=scale,
    )


def _over_training(drawn: pd.DataFrame, by_hp: Chart, hp: str, top: float) -> list[Chart]:
    """Return the charts of load over training: a line per shape at the transferred HP, and per HP value at the base."""

    def chart(kind: str, title: str, color: str, looks: Mapping[Any, Look]) -> Chart:
        return Chart(
            x="step",
            lines=(Line(y="deviation", where={"line": kind}, look={"linewidth": 1.3}),),
            color=color,
            panel="parameterization",
            looks=looks,
            names=by_hp.names if kind == OF_SHAPE else {value: _hp_text(value) for value in looks},
            titles=dict.fromkeys(by_hp.values(drawn), title),
            legend="keys" if kind == OF_SHAPE else "panel",
            legend_title=hp,
            finish=lambda axes, *_: style.set_axes(axes, "step", LOAD, y_ends=(0, top)),
        )

    values = sorted(set(drawn.loc[drawn["line"] == OF_HP, "value"]))
    of_values = dict(zip(values, ((color, "") for color in style.ramp(len(values))), strict=True))
    titles = {OF_SHAPE: f"each shape at the transferred {hp}", OF_HP: f"the base at each {hp}"}
    looks = {OF_SHAPE: by_hp.looks, OF_HP: of_values}
    return [
        chart(kind, titles[kind], "shape" if kind == OF_SHAPE else "value", looks[kind])
        for kind in titles
        if (drawn["line"] == kind).any()
    ]


def _hp_text(value: float) -> str:
    return value_text(value) if value > 0 else f"{value:g}"


def _most(frame: pd.DataFrame, scale: str, hp: str) -> str:
    """Return where each arm is most uneven at the end of training."""
    worst = frame.sort_values(["final", "scale", "x"]).drop_duplicates("parameterization", keep="last")
    said = {
        row.parameterization: f"{row.parameterization} {row.final:.2g} at {scale} {scale_text(row.scale)}, "
        f"{hp} 2^{row.x:.3g}"
        for row in each(worst)
    }
    names = list(said)
    if len(said) > MOST_IN_TITLE:
        return f"least with {said[names[0]]}; most with {said[names[-1]]}"
    return listed([said[name] for name in dict.fromkeys(frame["parameterization"])])


def _infos(given: HPInput) -> dict[str, Info | str]:
    found, results, line = given.analysis.found("balance"), given.results, given.line
    assert results is not None, "a table has no curves"
    known = curves_by_trial(results.curves, "load_deviation", set(line["trial_id"]))
    out: dict[str, Info | str] = {}
    for axis in given.axes:
        runs = line[(line["axis"] == axis) & line["trial_id"].isin(known)]
        trials_of = runs.groupby(["parameterization", "shape", "value"])["trial_id"].agg(list).to_dict()
        curves_of = {at: [known[trial] for trial in trials] for at, trials in trials_of.items()}
        values = {one.parameterization: one.base_value for one in given.report.findings if one.axis == axis}
        over = load_curves(rows_of(found, axis), curves_of, values)
        out[axis] = balance_block(found, axis, given.analysis.control, over)
    return out


BALANCE = HPFigure(
    name="balance",
    question="Are all experts used alike?",
    infos=_infos,
    draw=draw,
    judged_only=True,
)
