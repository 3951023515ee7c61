"""Experts against expert size: loss over the number of experts at equal parameters, one line per size of model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis.statistics.experts_size import ExpertsAgainstSize
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.style import SMALL
from hpxfer.figures.text import control_last, listed, why_none, with_interval
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

NOTHING = "no two shapes trade experts for expert size"


def experts_size_block(
    found: Sequence[ExpertsAgainstSize], judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure shows, or why there is none."""
    kept = sorted(
        (lines for lines in found if lines.groups), key=lambda lines: control_last(lines.parameterization, control)
    )
    if not kept:
        return why_none((lines.why_not for lines in found), NOTHING)
    slopes = [text for lines in kept if (text := _slopes(lines))]
    groups = [
        (lines, group)
        for lines in kept
        for group in sorted(lines.groups, key=lambda of: (of.expert_features, of.width, of.depth))
    ]
    rows = [
        (
            *(number, lines.parameterization, group.width, group.depth, group.expert_features, group.active_features),
            *(point.num_experts, point.num_active, point.expert_width, point.loss, point.se, group.slope),
        )
        for number, (lines, group) in enumerate(groups)
        for point in group.points
    ]
    columns = ["parameterization", "width", "depth", "expert_features", "active_features", "num_experts"]
    columns += ["num_active", "expert_width", "loss_nats", "se_nats", "slope_nats_per_doubling"]
    frame = pd.DataFrame(rows, columns=["group", *columns])
    colors = {lines.parameterization: iter(style.ramp(len(lines.groups))) for lines in kept}
    return Block(
        title=f"{judged.unit.capitalize()} per doubling of experts at equal parameters: {listed(slopes) or 'unknown'}",
        caption="Shapes of one line have the same width, depth and expert parameters, both total and active: where "
        "there are more experts, they are smaller (the number beside a point is the expert width). Loss at the "
        "transferred HP, as a mean over seeds with two standard errors.",
        frame=frame,
        headings={name: name for name in columns},
        charts=(
            Chart(
                x="num_experts",
                lines=(Line(y="loss_nats", se="se_nats", marker="o"),),
                color="group",
                panel="parameterization",
                looks={i: (next(colors[lines.parameterization]), "o") for i, (lines, _) in enumerate(groups)},
                names={
                    i: f"w{of.width} d{of.depth}, {of.active_features} of {of.expert_features} features"
                    for i, (_, of) in enumerate(groups)
                },
                finish=lambda axes, _, rows: _finish(axes, rows, judged.unit),
                legend="under",
            ),
        ),
        judged=judged,
        height=3.2,
    )


def _finish(axes: Axes, rows: pd.DataFrame, unit: str) -> None:
    for point in rows.itertuples():
        at = {"xytext": (4, 5), "textcoords": "offset points", "fontsize": SMALL}
        axes.annotate(f"{point.expert_width}", (point.num_experts, point.loss_nats), **at)  # type: ignore[arg-type]
    experts = sorted(set(rows["num_experts"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(experts, [f"{count}" for count in experts])
    axes.minorticks_off()
    axes.margins(x=0.12, y=0.15)
    style.set_axes(axes, "experts (log scale)", f"loss ({unit})")


def _slopes(lines: ExpertsAgainstSize) -> str | None:
    """Return the slopes of a parameterization's lines as text, or None if no line has a slope."""
    slopes = [
        with_interval(group.slope, group.low, group.high, "+.3f") for group in lines.groups if group.slope is not None
    ]
    return f"{lines.parameterization} {listed(slopes, 2)}" if slopes else None


EXPERTS_SIZE = SweepFigure(
    name="experts-size",
    question="Many small experts or few large ones?",
    infos=lambda results, analysis: {
        "": experts_size_block(analysis.found("experts_size"), analysis.judged, analysis.control)
    },
    draw=draw,
)
