"""Load balance: how far the most uneven expert is from its fair share, against the HP, one color per scale.

Each arm has a panel, and all have one y-axis. So the rules of arms that balance differently stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis.statistics.routers import BalanceLine, LoadBalance
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, octaves_of, shape_name, why_none
from hpxfer.verdict import CONTROL, scale_text

X_MARGIN = 0.4  # octaves
MOST_IN_TITLE = 2  # arms; of more, the title names the two with the smallest and the largest deviation
NOTHING = "no shape with experts has a curve of its load"


@dataclass(frozen=True, kw_only=True)
class BalanceSeries:
    """The deviations of one shape over log2 HP, in fair shares: at 1 an expert is never used, or used twice as much."""

    name: str
    scale: float
    x: tuple[float, ...]
    peak: tuple[float, ...]  # the largest over training
    final: tuple[float, ...]  # over the last quarter
    diverged: tuple[int, ...]  # number of seeds


@dataclass(frozen=True, kw_only=True)
class BalancePanel:
    """One arm."""

    parameterization: str
    series: tuple[BalanceSeries, ...]  # by scale

    @property
    def worst(self) -> tuple[float, float, float]:
        """The largest final deviation, its scale and its log2 HP."""
        return max((y, shape.scale, x) for shape in self.series for x, y in zip(shape.x, shape.final, strict=True))


@dataclass(frozen=True, kw_only=True)
class BalanceInfo:
    """The load along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    panels: tuple[BalancePanel, ...]
    caption: str = (
        "The load of the expert that is furthest from its fair share, over all layers, in units of that share: at 1 an "
        "expert is never used, or gets twice its share. Solid lines show the mean over the last quarter of training, "
        "dashed lines the largest value at any time. Both are means over seeds."
    )

    def table(self) -> pd.DataFrame:
        """Return one row per point."""
        rows = [
            (self.axis, panel.parameterization, shape.scale, *point)
            for panel in self.panels
            for shape in panel.series
            for point in zip(shape.x, shape.final, shape.peak, shape.diverged, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, f"log2_{self.hp}", "final", "peak", "diverged_seeds"]
        return pd.DataFrame(rows, columns=columns)


def balance_info(found: Sequence[LoadBalance], axis: str, control: str | None = CONTROL) -> BalanceInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    panels = [BalancePanel(parameterization=load.parameterization, series=_series(load.lines)) for load in of_axis]
    kept = tuple(panel for panel in panels if panel.series)
    if not kept:
        return why_none((load.why_not for load in of_axis), NOTHING)
    first = of_axis[0]

    def worst(panel: BalancePanel) -> str:
        deviation, scale, x = panel.worst
        where = f"{first.scale_name} {scale_text(scale)}, {first.hp} 2^{x:.3g}"
        return f"{panel.parameterization} {deviation:.2g} at {where}"

    if len(kept) > MOST_IN_TITLE:
        ordered = sorted(kept, key=lambda panel: panel.worst)
        named = f"least with {worst(ordered[0])}; most with {worst(ordered[-1])}"
    else:
        named = listed([worst(panel) for panel in kept])
    return BalanceInfo(
        title=f"Largest load deviation at the end of training, in fair shares: {named}",
        hp=first.hp,
        axis=axis,
        scale_name=first.scale_name,
        panels=kept,
    )


def _series(lines: Sequence[BalanceLine]) -> tuple[BalanceSeries, ...]:
    by_scale: dict[tuple[float, bool], list[BalanceLine]] = {}
    for line in lines:
        if line.value > 0 and line.peak is not None and line.final is not None:
            by_scale.setdefault((line.scale, line.is_base), []).append(line)
    out = []
    for (scale, is_base), group in sorted(by_scale.items()):
        group.sort(key=lambda line: line.value)
        out.append(
            BalanceSeries(
                name=shape_name(scale, is_base),
                scale=scale,
                x=tuple(math.log2(line.value) for line in group),
                peak=tuple((line.peak or 0.0) / line.fair_share for line in group),
                final=tuple((line.final or 0.0) / line.fair_share for line in group),
                diverged=tuple(line.num_diverged for line in group),
            )
        )
    return tuple(out)


def draw_balance(info: BalanceInfo) -> Figure:
    """Return the figure: one panel per arm, all on one y-axis."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=2.9)
        every = [shape for panel in info.panels for shape in panel.series]
        top = 1.08 * max(y for shape in every for y in (*shape.peak, *shape.final))
        color_of = style.scale_colors(shape.scale for shape in every)
        xs = [x for shape in every for x in shape.x]
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, panel, color_of)
            axes.set_xlim(min(xs) - X_MARGIN, max(xs) + X_MARGIN)
            axes.set_ylim(0, max(top, 0.05))
            axes.set_xlabel(octaves_of(info.hp))
            axes.set_ylabel("load deviation (fair shares)")
        name_of = {shape.scale: shape.name for shape in every}
        handles = [
            Line2D([], [], color=color, marker="o", markersize=4, label=name_of[scale])
            for scale, color in color_of.items()
        ]
        handles.append(Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label="largest at any time"))
        style.legend_below(figure, handles, columns=6, title=info.scale_name)
    return figure


def _draw_panel(axes: Axes, panel: BalancePanel, color_of: Mapping[float, str]) -> None:
    axes.set_title(panel.parameterization)
    for shape in panel.series:
        color = color_of[shape.scale]
        axes.plot(shape.x, shape.peak, color=color, linewidth=1.1, linestyle="--", alpha=0.7)
        axes.plot(shape.x, shape.final, color=color, linewidth=1.8, marker="o", markersize=4, zorder=3)
    style.whole_octaves(axes)


BALANCE = HPFigure(
    name="balance",
    question="Are all experts used alike?",
    infos=lambda given: {
        axis: balance_info(given.analysis.found("balance"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw_balance,
    judged_only=True,
)
