"""Two HPs at once: the measured cells, the contours of the quadratic surface through them, and its lowest point."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis.surface import Surface
from hpxfer.figures import style
from hpxfer.figures.cells import cell_edges, cell_handles, draw_cell, draw_star
from hpxfer.figures.words import control_last, listed, why, with_interval

NOTHING = "no two HPs are scanned together (product: true)"
MOST_PANELS = 6  # of a figure
RISE_QUANTILE = 0.75
MIN_RISE = 1e-3  # nats
CONTOURS = (0.0025, 0.01, 0.03)  # of the lowest loss
GRID = 31  # points a side that contours are drawn through


@dataclass(frozen=True, kw_only=True)
class SurfaceInfo:
    """The surfaces of one pair of HPs, `first` across and `second` up."""

    title: str
    caption: str
    first: str
    second: str
    top_nats: float  # the rise over a panel's best cell with the lightest color
    panels: tuple[Surface, ...]
    titles: tuple[str, ...]

    def table(self) -> pd.DataFrame:
        """Return the cells drawn, a row each, with the fitted loss beside the measured one."""
        rows = [
            (one.parameterization, one.shape, c.log2_first, c.log2_second, c.loss, one.at(c.log2_first, c.log2_second))
            for one in self.panels
            for c in one.cells
        ]
        columns = ["parameterization", "shape", f"log2_{self.first}", f"log2_{self.second}", "loss_nats", "fitted_nats"]
        return pd.DataFrame(rows, columns=columns)


def surface_info(found: Sequence[Surface], first: str, second: str) -> SurfaceInfo | str:
    """Return what the figure of a pair of HPs shows, or why there is none. The base's surfaces come first."""
    of_pair = [one for one in found if (one.first, one.second) == (first, second)]
    kept = [one for one in of_pair if any(cell.loss is not None for cell in one.cells)]
    if not kept:
        return why((one.why_not for one in of_pair), NOTHING)
    kept.sort(key=lambda one: (not one.is_base, _by_size(one.shape), control_last(one.parameterization)))
    rises = [rise for one in kept for rise in cell_rises(one) if rise is not None]
    left_out = len(kept) - MOST_PANELS
    panels = tuple(kept[:MOST_PANELS])
    said = [_said(one) for one in panels if one.interaction is not None and one.is_base == panels[0].is_base]
    return SurfaceInfo(
        title=f"Octaves that the best {first} moves per octave of {second}: {listed(said, 2) or 'unknown'}",
        caption="Color: mean loss over seeds, against the best cell. Lines: the fitted surface "
        f"{', '.join(f'{share:.2%}' for share in CONTOURS)} above its lowest point. A tilt means that the two HPs have "
        "to be tuned together." + (f" {left_out} more surfaces are not shown." if left_out > 0 else ""),
        first=first,
        second=second,
        top_nats=max(float(np.quantile(rises, RISE_QUANTILE)) if rises else 0.0, MIN_RISE),
        panels=panels,
        titles=tuple(_title(one) for one in panels),
    )


def cell_rises(one: Surface) -> list[float | None]:
    """Return the loss of each cell over the best one; None where a seed diverged."""
    best = min((cell.loss for cell in one.cells if cell.loss is not None), default=0.0)
    return [None if cell.loss is None else cell.loss - best for cell in one.cells]


def _by_size(shape: str) -> list[int]:
    """Return the numbers in a shape's name: w64 comes before w128."""
    return [int(number) for number in re.findall(r"\d+", shape)]


def _title(one: Surface) -> str:
    return one.shape + (" (base)" if one.is_base else "") + f", {one.parameterization}"


def _said(one: Surface) -> str:
    assert one.interaction is not None, "only surfaces with one are named"
    where = "the base" if one.is_base else one.shape
    return f"{one.parameterization} at {where} " + with_interval(
        one.interaction, one.interaction_low, one.interaction_high
    )


def draw_surface(info: SurfaceInfo) -> Figure:
    """Return the figure: a panel a shape and parameterization."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.2, foot=0.6)
        for axes, one, title in zip(grid, info.panels, info.titles, strict=True):
            axes.set_title(style.wrapped(title, 46))
            draw_heat(axes, one, info.top_nats)
            _draw_contours(axes, one)
            if one.log2_values is not None:
                draw_star(axes, *one.log2_values)
            axes.set_xlabel(f"log2 {info.first}")
            axes.set_ylabel(f"log2 {info.second}")
        diverged = any(cell.loss is None for one in info.panels for cell in one.cells)
        handles: list[Artist] = cell_handles(info.top_nats, star="lowest point", diverged=diverged, missing=False)
        halo = [patheffects.Stroke(linewidth=2.6, foreground="#000000"), patheffects.Normal()]
        handles.append(Line2D([], [], color="#ffffff", linewidth=1.2, path_effects=halo, label="fitted surface"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def draw_heat(axes: Axes, one: Surface, top_nats: float, *, numbers: bool = False) -> None:
    """Draw the cells of a surface; with `numbers`, how far each lies above the best."""
    axes.grid(visible=False)
    xs = sorted({cell.log2_first for cell in one.cells})
    ys = sorted({cell.log2_second for cell in one.cells})
    x_edges, y_edges = cell_edges(xs), cell_edges(ys)
    for cell, rise in zip(one.cells, cell_rises(one), strict=True):
        i, j = xs.index(cell.log2_first), ys.index(cell.log2_second)
        draw_cell(
            axes,
            (x_edges[i], x_edges[i + 1]),
            (y_edges[j], y_edges[j + 1]),
            None if rise is None else rise / top_nats,
            text="" if rise is None or not numbers else f"{rise:.2g}" if rise else "best",
        )
    axes.set_xlim(x_edges[0], x_edges[-1])
    axes.set_ylim(y_edges[0], y_edges[-1])
    style.whole_octaves(axes)


def _draw_contours(axes: Axes, one: Surface) -> None:
    if one.loss is None:
        return
    x, y = (np.linspace(*limits, GRID) for limits in (axes.get_xlim(), axes.get_ylim()))
    fitted = np.array([[one.at(float(a), float(b)) or 0.0 for a in x] for b in y])
    levels = [one.loss + share * abs(one.loss) for share in CONTOURS]
    axes.contour(x, y, fitted, levels=levels, colors=["#000000"], linewidths=2.6)
    axes.contour(x, y, fitted, levels=levels, colors=["#ffffff"], linewidths=1.2)
