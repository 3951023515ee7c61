"""Stability map: HPs by scales, colored by loss, with what diverged and where the optimum lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpxfer.analysis.labels import scale_text
from hpxfer.analysis.statistics.stability import StabilityMap
from hpxfer.figures import style
from hpxfer.figures.heatmap import CellLook, cell_handles, draw_cells, draw_star, top_rise
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import along, listed, why_none

NOTHING = "no trial has a result"


@dataclass(frozen=True, kw_only=True)
class StabilityPanel:
    """One parameterization. Rows are scales, columns log2 HPs; `rise_nats` is the loss over the best of its scale."""

    parameterization: str
    title: str
    scales: tuple[float, ...]
    x: tuple[float, ...]
    rise_nats: tuple[tuple[float | None, ...], ...]  # None: no result, or diverged
    diverged_share: tuple[tuple[float | None, ...], ...]  # None: no result
    optima: tuple[float | None, ...]  # log2


@dataclass(frozen=True, kw_only=True)
class StabilityInfo:
    """The maps of one HP along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    top_nats: float  # the rise that gets the lightest color
    panels: tuple[StabilityPanel, ...]
    caption: str = (
        "Each cell is an HP at a scale. The color is the median loss over the best of its row, and the number is the "
        "share of seeds that diverged (a cross: at least half). The star is the optimum. That the edge of divergence "
        "stays put does not show that the optimum does."
    )

    def table(self) -> pd.DataFrame:
        """Return one row per cell."""
        rows = [
            (self.axis, panel.parameterization, scale, x, rise, share, optimum)
            for panel in self.panels
            for scale, rises, shares, optimum in zip(
                panel.scales, panel.rise_nats, panel.diverged_share, panel.optima, strict=True
            )
            for x, rise, share in zip(panel.x, rises, shares, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, f"log2_{self.hp}", "rise_nats", "diverged_share"]
        return pd.DataFrame(rows, columns=[*columns, "optimum_log2"])


def stability_info(found: Sequence[StabilityMap], axis: str, hp: str) -> StabilityInfo | str:
    """Return what the figure of one HP along one axis shows, or why there is none."""
    of_axis = along([cells for cells in found if cells.hp == hp], axis)
    kept = [cells for cells in of_axis if cells.why_not is None and cells.scales]
    if not kept:
        return why_none((cells.why_not for cells in of_axis), NOTHING)
    panels = tuple(_panel(cells) for cells in kept)
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
        top_nats=top_rise(rise for panel in panels for row in panel.rise_nats for rise in row if rise is not None),
        panels=panels,
    )


def _distance(cells: StabilityMap) -> str:
    known = [octaves for octaves in cells.distance_octaves if octaves is not None]
    if known:
        return f"{cells.parameterization} at least {min(known):.2g}"
    shares = [share for row in cells.diverged_share for share in row if share is not None]
    if all(shares):
        return f"{cells.parameterization} always diverges"
    return f"{cells.parameterization} " + ("unknown (no optimum there)" if any(shares) else "never diverged")


def _panel(cells: StabilityMap) -> StabilityPanel:
    columns = [k for k, value in enumerate(cells.values) if value > 0]
    rises = []
    for row in cells.losses:
        best = min((row[k] for k in columns if row[k] is not None), default=None)  # type: ignore[type-var]
        rises.append(tuple(None if (loss := row[k]) is None or best is None else loss - best for k in columns))
    slope = cells.edge_octaves_per_doubling
    edge = "" if slope is None else f": edge moves {slope:+.2f} octaves per doubling"
    return StabilityPanel(
        parameterization=cells.parameterization,
        title=cells.parameterization + edge,
        scales=cells.scales,
        x=tuple(math.log2(cells.values[k]) for k in columns),
        rise_nats=tuple(rises),
        diverged_share=tuple(tuple(row[k] for k in columns) for row in cells.diverged_share),
        optima=cells.optima_log2,
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


def _draw_panel(axes: Axes, info: StabilityInfo, panel: StabilityPanel) -> None:
    def look(k: int, i: int) -> CellLook:
        rise, share = panel.rise_nats[i][k], panel.diverged_share[i][k]
        return CellLook(
            fraction=None if rise is None else rise / info.top_nats,
            measured=share is not None,
            text=f"{share:.0%}" if share else "",
        )

    axes.set_title(style.wrapped(panel.title, 46))
    draw_cells(axes, panel.x, range(len(panel.scales)), look)
    for i, optimum in enumerate(panel.optima):
        if optimum is not None:
            draw_star(axes, optimum, i)
    axes.set_yticks(range(len(panel.scales)), [scale_text(scale) for scale in panel.scales])
    axes.set_ylabel(info.scale_name)
    axes.set_xlabel(f"log2 {info.hp}")
    style.whole_octaves(axes)


def _handles(info: StabilityInfo) -> list[Artist]:
    shares = [share for panel in info.panels for row in panel.diverged_share for share in row]
    return cell_handles(
        info.top_nats,
        star="optimum" if any(optimum is not None for panel in info.panels for optimum in panel.optima) else None,
        diverged=any(share is not None and share >= 0.5 for share in shares),
        missing=any(share is None for share in shares),
    )


STABILITY = HPFigure(
    name="stability",
    question="How far is the optimum from divergence?",
    infos=lambda given: {
        axis: stability_info(given.analysis.found("stability"), axis, given.report.hp) for axis in given.axes
    },
    draw=draw_stability,
)
