"""Stability map and surface: losses over an HP and a scale, or over two HPs, with what diverged and the optimum."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.stability import StabilityMap
from hpxfer.analysis.statistics.surface import Surface
from hpxfer.figures import style
from hpxfer.figures.heatmap import CellLook, cell_handles, draw_cells, draw_star, top_rise
from hpxfer.figures.kinds import HPFigure, Info, SweepFigure
from hpxfer.figures.text import along, control_last, listed, octaves_of, why_none, with_interval
from hpxfer.results import Results
from hpxfer.verdict import CONTROL, NATS, JudgedLoss, scale_text

NO_SURFACE = "no two HPs are scanned together (product: true)"
MOST_PANELS = 6  # per figure
CONTOURS = (0.0025, 0.01, 0.03)  # rises over the lowest point, as fractions of the lowest loss
GRID = 31  # points per side that contours are drawn through


@dataclass(frozen=True, kw_only=True)
class SurfaceInfo:
    """The surfaces of one pair of HPs: `first` on the x-axis and `second` on the y-axis."""

    title: str
    caption: str
    first: str
    second: str
    top_nats: float  # the rise over a panel's best cell that gets the lightest color
    panels: tuple[Surface, ...]
    titles: tuple[str, ...]
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per cell, with the fitted loss beside the measured one."""
        rows = [
            (
                *(panel.parameterization, panel.shape, cell.log2_first, cell.log2_second),
                *(cell.loss, panel.at(cell.log2_first, cell.log2_second)),
            )
            for panel in self.panels
            for cell in panel.cells
        ]
        columns = ["parameterization", "shape", f"log2_{self.first}", f"log2_{self.second}", "loss_nats", "fitted_nats"]
        return pd.DataFrame(rows, columns=columns).rename(columns=self.judged.column)


def surface_info(
    found: Sequence[Surface], first: str, second: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> SurfaceInfo | str:
    """Return what the figure of a pair of HPs shows, or why there is none. The base's surfaces come first."""
    of_pair = [surface for surface in found if (surface.first, surface.second) == (first, second)]
    kept = [surface for surface in of_pair if any(cell.loss is not None for cell in surface.cells)]
    if not kept:
        return why_none((surface.why_not for surface in of_pair), NO_SURFACE)
    kept.sort(
        key=lambda surface: (
            not surface.is_base,
            _sizes(surface.shape),
            control_last(surface.parameterization, control),
        )
    )
    left_out = len(kept) - MOST_PANELS
    panels = tuple(kept[:MOST_PANELS])
    tilts = [
        _interaction(surface)
        for surface in panels
        if surface.interaction is not None and surface.is_base == panels[0].is_base
    ]
    return SurfaceInfo(
        title=f"Octaves that the best {first} moves per octave of {second}: {listed(tilts, 2) or 'unknown'}",
        caption="Color: mean loss over seeds above the best cell. Lines: the fitted surface, at "
        f"{', '.join(f'{share:.2%}' for share in CONTOURS)} above its lowest point. A tilt means that the two HPs have "
        "to be tuned together." + (f" {left_out} more surfaces are not shown." if left_out > 0 else ""),
        first=first,
        second=second,
        top_nats=top_rise(rise for surface in kept for rise in cell_rises(surface) if rise is not None),
        panels=panels,
        titles=tuple(_title(surface) for surface in panels),
        judged=judged,
    )


def cell_rises(surface: Surface) -> list[float | None]:
    """Return the loss of each cell over that of the best cell. It is None where a seed diverged."""
    best = min((cell.loss for cell in surface.cells if cell.loss is not None), default=0.0)
    return [None if cell.loss is None else cell.loss - best for cell in surface.cells]


def _sizes(shape: str) -> list[int]:
    """Return the numbers in a shape's name, so that w64 comes before w128."""
    return [int(number) for number in re.findall(r"\d+", shape)]


def _title(surface: Surface) -> str:
    return surface.shape + (" (base)" if surface.is_base else "") + f", {surface.parameterization}"


def _interaction(surface: Surface) -> str:
    assert surface.interaction is not None, "only surfaces with an interaction are named"
    where = "the base" if surface.is_base else surface.shape
    tilt = with_interval(surface.interaction, surface.interaction_low, surface.interaction_high)
    return f"{surface.parameterization} at {where} {tilt}"


def draw_surface(info: SurfaceInfo) -> Figure:
    """Return the figure: one panel per shape and parameterization."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.2, foot=0.6)
        for axes, surface, title in zip(grid, info.panels, info.titles, strict=True):
            axes.set_title(style.wrapped(title, 46))
            draw_surface_cells(axes, surface, info.top_nats, info.judged)
            _draw_contours(axes, surface, info.judged)
            if surface.log2_values is not None:
                draw_star(axes, *surface.log2_values)
            axes.set_xlabel(octaves_of(info.first))
            axes.set_ylabel(octaves_of(info.second))
        diverged = any(cell.loss is None for surface in info.panels for cell in surface.cells)
        handles: list[Artist] = cell_handles(
            info.top_nats, star="lowest point", diverged=diverged, missing=False, judged=info.judged
        )
        halo = [patheffects.Stroke(linewidth=2.6, foreground="#000000"), patheffects.Normal()]
        handles.append(Line2D([], [], color="#ffffff", linewidth=1.2, path_effects=halo, label="fitted surface"))
        style.legend_below(figure, handles, columns=4)
    return figure


def draw_surface_cells(
    axes: Axes, surface: Surface, top_nats: float, judged: JudgedLoss, *, numbers: bool = False
) -> None:
    """Draw the cells of a surface. With `numbers`, each cell says how far it lies above the best."""
    xs = sorted({cell.log2_first for cell in surface.cells})
    ys = sorted({cell.log2_second for cell in surface.cells})
    rise_of = {
        (cell.log2_first, cell.log2_second): rise for cell, rise in zip(surface.cells, cell_rises(surface), strict=True)
    }

    def look(i: int, j: int) -> CellLook | None:
        if (xs[i], ys[j]) not in rise_of:
            return None
        rise = rise_of[xs[i], ys[j]]
        text = "" if rise is None or not numbers else f"{rise:.2g}" if rise else "best"
        return CellLook(fraction=None if rise is None else rise / top_nats, text=text)

    draw_cells(axes, xs, ys, look)
    style.whole_octaves(axes)


def _draw_contours(axes: Axes, surface: Surface, judged: JudgedLoss) -> None:
    if surface.loss is None:
        return
    x, y = (np.linspace(*limits, GRID) for limits in (axes.get_xlim(), axes.get_ylim()))
    fitted = np.array([[surface.at(float(a), float(b)) or 0.0 for a in x] for b in y])
    levels = [surface.loss + share * abs(surface.loss) for share in CONTOURS]
    for color, width in (("#000000", 2.6), ("#ffffff", 1.2)):
        axes.contour(x, y, fitted, levels=levels, colors=[color], linewidths=width)


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = analysis.found("surfaces")
    pairs = dict.fromkeys((surface.first, surface.second) for surface in found)
    if not pairs:
        return {"": "the sweep scans fewer than two HPs"}
    return {
        f"{first}-{second}": surface_info(found, first, second, analysis.judged, analysis.control)
        for first, second in pairs
    }


SURFACE = SweepFigure(name="surface", question="Do two HPs have to be tuned together?", infos=_infos, draw=draw_surface)


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
