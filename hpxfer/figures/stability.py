"""Stability map: HPs by scales, colored by loss, with what diverged and where the optimum lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpxfer.analysis.statistics.stability import StabilityMap
from hpxfer.figures import style
from hpxfer.figures.heatmap import CellLook, cell_handles, draw_cells, draw_star, top_rise
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import along, listed, octaves_of, why_none
from hpxfer.verdict.labels import scale_text
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.thresholds import CONTROL

NOTHING = "no trial has a result"


def rises(cells: StabilityMap) -> list[list[float | None]]:
    """Return the loss of each cell over the best of its scale. It is None without a loss."""
    best_of = [min((loss for loss in row if loss is not None), default=0.0) for row in cells.losses]
    return [
        [None if loss is None else loss - best for loss in row] for row, best in zip(cells.losses, best_of, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class StabilityInfo:
    """The maps of one HP along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    top_nats: float  # the rise that gets the lightest color
    panels: tuple[StabilityMap, ...]  # one per parameterization, with the HPs that have a log2
    caption: str = (
        "Each cell is an HP at a scale. The color is the median loss over the best of its row, and the number is the "
        "share of seeds that diverged (a cross: at least half). The star is the optimum. That the edge of divergence "
        "stays put does not show that the optimum does."
    )
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per cell."""
        rows = [
            (self.axis, cells.parameterization, scale, math.log2(value), rise, share, optimum)
            for cells in self.panels
            for scale, row, shares, optimum in zip(
                cells.scales, rises(cells), cells.diverged_share, cells.optima_log2, strict=True
            )
            for value, rise, share in zip(cells.values, row, shares, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, f"log2_{self.hp}", "rise_nats", "diverged_share"]
        return pd.DataFrame(rows, columns=[*columns, "optimum_log2"]).rename(columns=self.judged.column)


def stability_info(
    found: Sequence[StabilityMap], axis: str, hp: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> StabilityInfo | str:
    """Return what the figure of one HP along one axis shows, or why there is none."""
    of_axis = along([cells for cells in found if cells.hp == hp], axis, control)
    kept = [cells for cells in of_axis if cells.why_not is None and cells.scales]
    if not kept:
        return why_none((cells.why_not for cells in of_axis), NOTHING)
    panels = tuple(_with_log(cells) for cells in kept)
    if any(share for panel in panels for row in panel.diverged_share for share in row):
        distances = listed([_distance(cells) for cells in kept])
        title = f"Octaves of {hp} from the optimum to divergence along {axis}: {distances}"
    else:
        title = f"No seed diverged along {axis} at any {hp} of the grid"
    return StabilityInfo(
        title=title,
        hp=hp,
        axis=axis,
        scale_name=kept[0].scale_name,
        top_nats=top_rise(rise for panel in panels for row in rises(panel) for rise in row if rise is not None),
        panels=panels,
        judged=judged,
    )


def _distance(cells: StabilityMap) -> str:
    known = [octaves for octaves in cells.distance_octaves if octaves is not None]
    if known:
        return f"{cells.parameterization} at least {min(known):.2g}"
    shares = [share for row in cells.diverged_share for share in row if share is not None]
    if all(shares):
        return f"{cells.parameterization} always diverges"
    return f"{cells.parameterization} " + ("unknown (no optimum there)" if any(shares) else "never diverged")


def _with_log(cells: StabilityMap) -> StabilityMap:
    """Return the map without HPs of 0, which have no log2."""
    kept = [k for k, value in enumerate(cells.values) if value > 0]
    return replace(
        cells,
        values=tuple(cells.values[k] for k in kept),
        losses=tuple(tuple(row[k] for k in kept) for row in cells.losses),
        diverged_share=tuple(tuple(row[k] for k in kept) for row in cells.diverged_share),
    )


def draw_stability(info: StabilityInfo) -> Figure:
    """Return the figure: one panel per parameterization."""
    rows = max(len(panel.scales) for panel in info.panels)
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=1.3 + 0.34 * rows, foot=0.6)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, info, panel)
        style.legend_below(figure, _handles(info), columns=3)
    return figure


def _draw_panel(axes: Axes, info: StabilityInfo, cells: StabilityMap) -> None:
    rise_nats = rises(cells)

    def look(k: int, i: int) -> CellLook:
        rise, share = rise_nats[i][k], cells.diverged_share[i][k]
        return CellLook(
            fraction=None if rise is None else rise / info.top_nats,
            measured=share is not None,
            text=f"{share:.0%}" if share else "",
        )

    slope = cells.edge_octaves_per_doubling
    edge = "" if slope is None else f": edge moves {slope:+.2f} octaves per doubling"
    axes.set_title(style.wrapped(cells.parameterization + edge, 46))
    draw_cells(axes, [math.log2(value) for value in cells.values], range(len(cells.scales)), look)
    for i, optimum in enumerate(cells.optima_log2):
        if optimum is not None:
            draw_star(axes, optimum, i)
    axes.set_yticks(range(len(cells.scales)), [scale_text(scale) for scale in cells.scales])
    axes.set_ylabel(info.scale_name)
    axes.set_xlabel(octaves_of(info.hp))
    style.whole_octaves(axes)


def _handles(info: StabilityInfo) -> list[Artist]:
    shares = [share for panel in info.panels for row in panel.diverged_share for share in row]
    return cell_handles(
        info.top_nats,
        star="optimum" if any(optimum is not None for panel in info.panels for optimum in panel.optima_log2) else None,
        diverged=any(share is not None and share >= 0.5 for share in shares),
        missing=any(share is None for share in shares),
        judged=info.judged,
    )


STABILITY = HPFigure(
    name="stability",
    question="How far is the optimum from divergence?",
    infos=lambda given: {
        axis: stability_info(
            given.analysis.found("stability"), axis, given.report.hp, given.report.judged, given.report.control
        )
        for axis in given.axes
    },
    draw=draw_stability,
    of_lines=True,
)
