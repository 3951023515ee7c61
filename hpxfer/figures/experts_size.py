"""Experts against expert size: loss over the number of experts at equal parameters, one line per size of model."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.style import SMALL
from hpxfer.figures.text import each, listed, rows_of, why_no_rows, with_interval
from hpxfer.host import CONTROL, NATS, JudgedLoss

NOTHING = "no two shapes trade experts for expert size"


def experts_size_block(found: Found, judged: JudgedLoss = NATS, control: str | None = CONTROL) -> Block | str:
    """Return what the figure shows, or why there is none."""
    rows = rows_of(found, None, control)
    if rows.empty:
        return why_no_rows(found, None, NOTHING)
    key = ("parameterization", "group")
    groups = rows.drop_duplicates(list(key))
    by_arm = groups.groupby("parameterization", sort=False)
    order = ["expert_features", "width", "depth"]
    looks, names = {}, {}
    for _, arm in by_arm:
        for color, of in zip(style.ramp(len(arm)), each(arm.sort_values(order, kind="stable")), strict=True):
            looks[of.parameterization, of.group] = (color, "o")
            text = f"w{of.width} d{of.depth}, {of.active_features} of {of.expert_features} features"
            names[of.parameterization, of.group] = text
    slopes = [text for name, arm in by_arm for text in _slopes(str(name), arm.sort_values(order, kind="stable"))]
    return Block(
        title=f"{judged.unit.capitalize()} per doubling of experts at equal parameters: {listed(slopes) or 'unknown'}",
        caption="Shapes of one line have the same width, depth and expert parameters, both total and active: where "
        "there are more experts, they are smaller (the number beside a point is the expert width). Loss at the "
        "transferred HP, as a mean over seeds with two standard errors.",
        frame=rows,
        charts=(
            Chart(
                x="num_experts",
                lines=(Line(y="loss_nats", se="se_nats", marker="o"),),
                color=key,
                panel="parameterization",
                looks=looks,
                names=names,
                finish=lambda axes, _, rows: _finish(axes, rows, judged.unit),
                legend="under",
            ),
        ),
        judged=judged,
        height=3.2,
    )


def _finish(axes: Axes, rows: pd.DataFrame, unit: str) -> None:
    for point in each(rows):
        at = {"xytext": (4, 5), "textcoords": "offset points", "fontsize": SMALL}
        axes.annotate(f"{point.expert_width}", (point.num_experts, point.loss_nats), **at)  # type: ignore[arg-type]
    experts = sorted(set(rows["num_experts"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(experts, [f"{count}" for count in experts])
    axes.minorticks_off()
    axes.margins(x=0.12, y=0.15)
    style.set_axes(axes, "experts (log scale)", f"loss ({unit})")


def _slopes(name: str, groups: pd.DataFrame) -> Iterator[str]:
    """Yield the slopes of an arm's lines as text; nothing if no line has a slope."""
    known = groups[groups["slope_nats_per_doubling"].notna()]
    ends = zip(known["slope_nats_per_doubling"], known["slope_low"], known["slope_high"], strict=True)
    if slopes := [with_interval(*of, "+.3f") for of in ends]:
        yield f"{name} {listed(slopes, 2)}"


EXPERTS_SIZE = SweepFigure(
    name="experts-size",
    question="Many small experts or few large ones?",
    infos=lambda results, analysis: {
        "": experts_size_block(analysis.found("experts_size"), analysis.judged, analysis.control)
    },
    draw=draw,
)
