"""Experts against expert size: loss over the number of experts at equal parameters, one line per size of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpxfer.analysis.statistics.experts_size import ExpertsAgainstSize
from hpxfer.figures import style
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.style import SMALL
from hpxfer.figures.text import control_last, listed, why_none, with_interval
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

NOTHING = "no two shapes trade experts for expert size"


@dataclass(frozen=True, kw_only=True)
class ExpertsSizeInfo:
    """Loss against the number of experts at equal parameters."""

    title: str
    panels: tuple[ExpertsAgainstSize, ...]  # one per parameterization, groups from few expert features to many
    caption: str = (
        "Shapes of one line have the same width, depth and expert parameters, both total and active: where there are "
        "more experts, they are smaller (the number beside a point is the expert width). Loss at the transferred HP, "
        "as a mean over seeds with two standard errors."
    )
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per shape."""
        rows = [
            (
                *(panel.parameterization, group.width, group.depth, group.expert_features, group.active_features),
                *(point.num_experts, point.num_active, point.expert_width, point.loss, point.se, group.slope),
            )
            for panel in self.panels
            for group in panel.groups
            for point in group.points
        ]
        columns = ["parameterization", "width", "depth", "expert_features", "active_features", "num_experts"]
        return pd.DataFrame(
            rows, columns=[*columns, "num_active", "expert_width", "loss_nats", "se_nats", "slope_nats_per_doubling"]
        ).rename(columns=self.judged.column)


def experts_size_info(
    found: Sequence[ExpertsAgainstSize], judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> ExpertsSizeInfo | str:
    """Return what the figure shows, or why there is none."""
    kept = sorted(
        (lines for lines in found if lines.groups), key=lambda lines: control_last(lines.parameterization, control)
    )
    if not kept:
        return why_none((lines.why_not for lines in found), NOTHING)
    slopes = [text for lines in kept if (text := _slopes(lines, judged))]
    return ExpertsSizeInfo(
        title=f"{judged.unit.capitalize()} per doubling of experts at equal parameters: {listed(slopes) or 'unknown'}",
        judged=judged,
        panels=tuple(
            replace(lines, groups=tuple(sorted(lines.groups, key=lambda of: (of.expert_features, of.width, of.depth))))
            for lines in kept
        ),
    )


def _slopes(lines: ExpertsAgainstSize, judged: JudgedLoss) -> str | None:
    """Return the slopes of a parameterization's lines as text, or None if no line has a slope."""
    slopes = [
        with_interval(group.slope, group.low, group.high, "+.3f") for group in lines.groups if group.slope is not None
    ]
    return f"{lines.parameterization} {listed(slopes, 2)}" if slopes else None


def draw_experts_size(info: ExpertsSizeInfo) -> Figure:
    """Return the figure: one panel per parameterization."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.2)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, panel)
            axes.set_ylabel(f"loss ({info.judged.unit})")
    return figure


def _draw_panel(axes: Axes, panel: ExpertsAgainstSize) -> None:
    axes.set_title(panel.parameterization)
    for group, color in zip(panel.groups, style.ramp(len(panel.groups)), strict=True):
        x = [point.num_experts for point in group.points]
        y = [point.loss for point in group.points]
        name = f"w{group.width} d{group.depth}, {group.active_features} of {group.expert_features} features"
        axes.plot(x, y, color=color, marker="o", markersize=5, linewidth=1.6, label=name)
        for point in group.points:
            style.error_bar(axes, point.num_experts, point.loss, point.se, color)
            axes.annotate(
                f"{point.expert_width}",
                (point.num_experts, point.loss),
                xytext=(4, 5),
                textcoords="offset points",
                fontsize=SMALL,
            )
    experts = sorted({point.num_experts for group in panel.groups for point in group.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(experts, [f"{count}" for count in experts])
    axes.minorticks_off()
    axes.margins(x=0.12, y=0.15)
    axes.set_xlabel("experts (log scale)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))


EXPERTS_SIZE = SweepFigure(
    name="experts-size",
    question="Many small experts or few large ones?",
    infos=lambda results, analysis: {
        "": experts_size_info(analysis.found("experts_size"), analysis.judged, analysis.control)
    },
    draw=draw_experts_size,
)
