"""Cells: losses over two HPs, or over an HP and a scale, as colored cells, one per row of a frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from hpxfer.figures import style
from hpxfer.figures.chart import Panels
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.host import NATS, JudgedLoss

GAP = 0.03  # between cells, as a fraction of a cell's side
# A rise at this quantile or above it gets the lightest color: a few losses far up would make all others look alike.
RISE_QUANTILE = 0.75
MIN_RISE = 1e-3  # of a loss or an error
MOST_TICKS = 5  # per side: of as many cells each has its tick


def top_rise(rises: Iterable[float]) -> float:
    """Return the rise over the best loss that gets the lightest color."""
    known = list(rises)
    return max(float(np.quantile(known, RISE_QUANTILE)) if known else 0.0, MIN_RISE)


def above_best(rise: float, judged: JudgedLoss) -> str:
    """Return the label of the lightest color, e.g. `0.1 nats above, or more`."""
    return f"{judged.amount(rise)} above, or more"


def cell_edges(centers: Sequence[float]) -> list[float]:
    """Return the edges of cells around ascending centers. The outer edges lie as far out as the next ones lie in."""
    if len(centers) == 1:
        return [centers[0] - 0.5, centers[0] + 0.5]
    middles = [(left + right) / 2 for left, right in pairwise(centers)]
    return [2 * centers[0] - middles[0], *middles, 2 * centers[-1] - middles[-1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells(Panels):
    """A cell per row of the frame, colored by its rise over the best cell.

    Without a rise, a measured cell gets a cross, and any other one a dotted frame.
    """

    y: str
    rise: str
    measured: str | None = None  # the column that says whether there is a result; None: there is one in each cell
    text: str | None = None  # the column of what is written into cells
    star: str = "optimum"  # what a star is called
    stars: Mapping[Any, Sequence[tuple[float, float]]] = field(default_factory=dict)  # value of a panel -> its stars
    keys: tuple[Artist, ...] = ()  # further entries of the legend
    ends: tuple[str, str] | None = None  # what the darkest and the lightest color are called; None: best, so far above
    top: float | None = None  # the rise that gets the lightest color; None: that of the cells of the figure
    judged: JudgedLoss = NATS

    def draw_panel(self, axes: Axes, value: Any, rows: pd.DataFrame, frame: pd.DataFrame) -> list[Artist]:
        """Draw a panel. Return the legend of the colors and marks that appear in the figure."""
        top = top_rise(frame[self.rise].dropna()) if self.top is None else self.top
        x, y = sorted(set(rows[self.x])), sorted(set(rows[self.y]))
        x_edges, y_edges = cell_edges(x), cell_edges(y)
        axes.grid(visible=False)
        for cell in rows.to_dict("records"):
            i, j = x.index(cell[self.x]), y.index(cell[self.y])
            rise = None if math.isnan(cell[self.rise]) else cell[self.rise] / top
            is_measured = self.measured is None or bool(cell[self.measured])
            text = "" if self.text is None else cell[self.text]
            _draw_cell(axes, x_edges[i : i + 2], y_edges[j : j + 2], rise, text, is_measured=is_measured)
        axes.set_xlim(x_edges[0], x_edges[-1])
        axes.set_ylim(y_edges[0], y_edges[-1])
        if max(len(x), len(y)) <= MOST_TICKS:
            axes.set_xticks(x, [f"{at:.3g}" for at in x])
            axes.set_yticks(y, [f"{at:.3g}" for at in y])
        else:
            style.whole_octaves(axes)
        for star in self.stars.get(value, ()):
            draw_star(axes, *star)
        self.end_panel(axes, value, rows)
        there = pd.Series(data=True, index=frame.index) if self.measured is None else frame[self.measured].astype(bool)
        handles = cell_handles(
            top,
            star=self.star if any(self.stars.values()) else None,
            diverged=bool((frame[self.rise].isna() & there).any()),
            missing=not there.all(),
            judged=self.judged,
            ends=self.ends,
        )
        return [*handles, *self.keys]


def _draw_cell(
    axes: Axes, sides: Sequence[float], ends: Sequence[float], fraction: float | None, text: str, *, is_measured: bool
) -> None:
    """Draw one cell. `fraction` colors it from 0 (best) to 1."""
    (left, right), (low, high) = sides, ends
    side, rise = GAP * (right - left), GAP * (high - low)
    box = ((left + side, low + rise), right - left - 2 * side, high - low - 2 * rise)
    center = ((left + right) / 2, (low + high) / 2)
    if fraction is None:
        line = "-" if is_measured else ":"
        axes.add_patch(Rectangle(*box, fill=False, edgecolor=INK, alpha=FAINT, linewidth=0.7, linestyle=line))
        if is_measured:
            axes.plot(*center, marker="x", color=INK, markersize=7, markeredgewidth=1.6, linestyle="none")
        return
    color = style.cell_color(fraction)
    axes.add_patch(Rectangle(*box, facecolor=color, linewidth=0))
    if text:
        axes.text(*center, text, ha="center", va="center", fontsize=SMALL - 1, color=style.text_on(color))


def draw_star(axes: Axes, x: float, y: float) -> None:
    """Mark an optimum on cells of any color."""
    axes.plot(x, y, zorder=5, **_STAR)  # type: ignore[arg-type]


_STAR = {
    "marker": "*",
    "markersize": 13,
    "color": "#ffffff",
    "markeredgecolor": "#000000",
    "linestyle": "none",
}


def cell_handles(
    top_nats: float,
    *,
    star: str | None,
    diverged: bool,
    missing: bool,
    judged: JudgedLoss = NATS,
    ends: tuple[str, str] | None = None,
) -> list[Artist]:
    """Return the legend of the cells and marks that appear in a figure. `star` is the label of the star."""
    names = ends or ("best", above_best(top_nats, judged))
    out: list[Artist] = [
        Patch(facecolor=style.cell_color(at), label=name) for at, name in zip((0.0, 1.0), names, strict=True)
    ]
    if star is not None:
        out.append(Line2D([], [], label=star, **_STAR))  # type: ignore[arg-type]
    if diverged:
        out.append(Line2D([], [], marker="x", color=INK, linestyle="none", label="diverged"))
    if missing:
        out.append(Patch(fill=False, edgecolor=INK, alpha=FAINT, linestyle=":", label="no result"))
    return out
