"""Steps to the same loss: loss over steps of every arm, and arrows to where it has the loss that its reference ends at.

The form is that of papers, e.g. 2605.23893, Fig. 8: a dotted line at the loss of the reference, from the end of the
reference back to the arm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from hpxfer.analysis import Found
from hpxfer.figures import style
from hpxfer.figures.chart import CUT, LATE, Block, Chart, Line, Look, draw, key, late_ends
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import SMALL
from hpxfer.figures.text import each, listed, rows_of, why_no_rows
from hpxfer.host import CONTROL, NATS, JudgedLoss

NOTHING = "no two arms to compare"
BEFORE = 3  # x starts at this part of the first arrow's end at the latest
ARROWS = 3  # per reference: those of the fastest arms
LABEL_POINTS = 12  # from one arrow's text to the next one's, as they lie at one loss
ROOM = 0.22  # of the range of losses, below them, for the factors
Unit = Literal["steps", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """From where a reference ends to where an arm has its loss."""

    arm: str
    reference: str
    loss_nats: float
    start: float  # at the end of the reference, in steps or tokens
    stop: float
    factor: float


def steps_to_loss_block(
    found: Found, curves: Found, axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    every, reached = rows_of(curves, axis, control), rows_of(found, axis, control)
    if every.empty:
        return why_no_rows(found, axis, NOTHING)
    unit = _unit(every)
    rows = every[every[unit].notna()]
    if rows.empty:
        return NOTHING
    names = list(dict.fromkeys(every["parameterization"]))
    by_arm = {name: reached[reached["parameterization"] == name] for name in names}
    arrows = {name: arrows_of(by_arm[name], unit) for name in names}
    not_compared = reached[reached["other_data"].notna()]
    other_data = dict(zip(not_compared["arm"], not_compared["other_data"], strict=True))
    looks = _looks(rows)
    stops = [arrow.stop / BEFORE for found in arrows.values() for arrow in found]
    ends = late_ends(rows, unit, min([float(rows[unit].max()) / LATE, *stops]), ROOM)
    chart = Chart(
        x=unit,
        lines=(Line(y="mean_nats", low="min_nats", high="max_nats", look={"linewidth": 1.5}),),
        color="curve",
        panel="parameterization",
        looks=looks,
        names={name: f"{name} (other data)" for name in other_data},
        keys=(key("the same loss", alpha=1.0, linestyle=":", marker="o", markersize=4),)
        if any(arrows.values())
        else (),
        finish=lambda axes, name, _: _finish(axes, arrows[name], looks, unit, judged.unit, ends),
    )
    return Block(
        title=f"{unit.capitalize()} to the same loss, {axis}: "
        f"{listed([_fastest(name, rows, unit) for name, rows in by_arm.items()])}",
        caption=_caption(every, unit, other_data),
        frame=rows,
        charts=(chart,),
        judged=judged,
        height=3.4,
        foot=0.9,
        legend_columns=3,
    )


def _caption(every: pd.DataFrame, unit: Unit, other_data: Mapping[str, str]) -> str:
    """Return how to read the figure, and which arms are not compared or not drawn."""
    caption = (
        "Training losses, as means over the last tenth of the steps so far; the band is the range of seeds. Arms have "
        "the HP transferred from the base, a reference has its own best one. A dotted line is at the loss that a "
        "reference ends at, and leads from there to the arm that has it earlier or later; the number is by what "
        f"factor the arm takes fewer {unit}, or more where it says so (median over paired seeds). Those of the "
        f"{ARROWS} fastest arms are drawn; the table says which arms do not reach the loss. "
        f"References are dashed, in the color of the arm of the same shape. {CUT}"
    )
    if (every["kind"] == "elsewhere").any():
        caption += " Dash-dotted curves were trained elsewhere."
    if other_data:
        arms = ", ".join(f"{arm} ({data})" for arm, data in other_data.items())
        caption += f" Not compared, as training losses on different data are not comparable: {arms}."
    if lost := dict.fromkeys(every.loc[every[unit].isna(), "curve"]):
        caption += f" Not drawn, as arms differ in their batches and these curves count no tokens: {', '.join(lost)}."
    return caption


def _unit(curves: pd.DataFrame) -> Unit:
    """Return what x counts: steps, unless batches differ or a curve counts tokens only."""
    own = curves[curves["kind"] != "elsewhere"]
    num_batches = (own["tokens"] / own["steps"]).round().nunique()
    return "tokens" if num_batches > 1 or curves["steps"].isna().any() else "steps"


def _fastest(name: str, rows: pd.DataFrame, unit: Unit) -> str:
    """Return the largest factor of a panel: against arms of the sweep or, without any, curves from elsewhere."""
    own = rows if rows["elsewhere"].all() else rows[~rows["elsewhere"].astype(bool)]
    known = [(factor, row.reference) for row in each(own) if not pd.isna(factor := _factor(row, unit))]
    if own["other_data"].notna().all():
        return f"{name} not compared, as data differ"
    if not known:
        return f"{name} never has it"
    factor, reference = max(known, key=lambda found: found[0])
    spelled = f"up to {factor:.3g}x fewer" if factor >= 1 else f"at best {1 / factor:.3g}x more"
    if f"{factor:.3g}" == "1":
        spelled = "no fewer"
    return f"{name} {spelled} than {reference}"


def _factor(row: Any, unit: Unit) -> float:
    """Return by what factor an arm takes fewer; NaN where it has not the loss."""
    factor = row.speed_up if unit == "steps" and not pd.isna(row.reference_steps) else row.fewer_tokens
    return float("nan") if factor is None else float(factor)  # a column of None alone holds no NaN


def arrows_of(rows: pd.DataFrame, unit: Unit) -> list[Arrow]:
    """Return the arrows of a panel: those of the fastest arms, for each reference."""
    arrows: list[Arrow] = []
    for _, found in rows.groupby("reference", sort=False):
        known = [arrow for row in each(found) if (arrow := _arrow(row, unit))]
        arrows += sorted(known, key=lambda arrow: -arrow.factor)[:ARROWS]
    return arrows


def _arrow(row: Any, unit: Unit) -> Arrow | None:
    stop, start = (row.steps, row.reference_steps) if unit == "steps" else (row.tokens, row.reference_tokens)
    factor = _factor(row, unit)
    if any(pd.isna(each) for each in (stop, start, factor, row.loss_nats)):
        return None
    return Arrow(arm=row.arm, reference=row.reference, loss_nats=row.loss_nats, start=start, stop=stop, factor=factor)


def _looks(curves: pd.DataFrame) -> dict[str, Look]:
    """Return the look of each curve: by rank of the shape, references dashed; dash-dotted for curves from elsewhere."""
    kind_of = dict.fromkeys(curves["curve"], "arm") | {
        row.curve: row.kind for row in each(curves.drop_duplicates(["curve", "kind"])) if row.kind != "arm"
    }
    own, elsewhere = ([name for name, kind in kind_of.items() if (kind == "elsewhere") is at] for at in (False, True))
    # The reference `sp w64` has the shape of the arm `w64`.
    shape_of = {name: next((shape for shape in own if name.endswith(f" {shape}")), name) for name in own}
    shapes = [name for name, shape in shape_of.items() if name == shape]
    color_of = dict(zip(shapes, style.ramp(len(shapes)), strict=True))
    marks = [color for color, _ in style.MARKS[2:]]
    return {
        **{name: (color_of[shape_of[name]], "", "--" if kind_of[name] == "reference" else "-") for name in own},
        **{name: (marks[i % len(marks)], "", "-.") for i, name in enumerate(elsewhere)},
    }


def _finish(
    axes: Axes,
    arrows: Sequence[Arrow],
    looks: Mapping[str, Look],
    unit: Unit,
    loss_unit: str,
    ends: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    place: dict[str, int] = {}
    for arrow in arrows:
        place[arrow.reference] = place.get(arrow.reference, 0) + 1
        _draw_arrow(axes, arrow, looks[arrow.arm][0], place[arrow.reference])
    style.log_steps(axes)
    if unit == "tokens":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style.set_axes(axes, f"{unit} (log scale)", f"training loss ({loss_unit})", x_ends=ends[0], y_ends=ends[1])


def _draw_arrow(axes: Axes, arrow: Arrow, color: str, place: int) -> None:
    """Draw the dotted line from the end of a reference to an arm, and its factor, the `place`-th below the line."""
    axes.plot([arrow.start, arrow.stop], [arrow.loss_nats] * 2, linestyle=":", linewidth=1.3, color=color)
    axes.plot(arrow.stop, arrow.loss_nats, marker="o", markersize=4, color=color)
    axes.annotate(
        "",
        (arrow.stop, arrow.loss_nats),
        (arrow.stop * (arrow.start / arrow.stop) ** 0.15, arrow.loss_nats),
        arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0},
    )
    axes.annotate(
        f"{arrow.factor:.3g}x" if arrow.factor >= 1 else f"{1 / arrow.factor:.3g}x more",
        (arrow.stop, arrow.loss_nats),
        (-4, -LABEL_POINTS * place),
        textcoords="offset points",
        color=color,
        fontsize=SMALL,
        fontweight="bold",
        ha="right",
    )


STEPS_TO_LOSS = HPFigure(
    name="steps-to-loss",
    question="After how many steps does each arm have the loss that its reference ends at?",
    infos=lambda given: {
        axis: steps_to_loss_block(
            given.analysis.found("steps_to_loss"),
            given.analysis.found("loss_curves"),
            axis,
            given.report.judged,
            given.analysis.control,
        )
        for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
