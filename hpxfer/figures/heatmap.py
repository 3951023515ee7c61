"""Heatmaps: losses over two HPs, or over an HP and a scale, as colored cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.verdict import NATS, JudgedLoss

GAP = 0.03  # between cells, as a fraction of a cell's side
# A rise at this quantile or above it gets the lightest color: a few losses far up would make all others look alike.
RISE_QUANTILE = 0.75
MIN_RISE = 1e-3  # of a loss or an error
MOST_TICKS = 5  # per side: of as many cells each has its tick


@dataclass(frozen=True, kw_only=True)
class CellLook:
    """How one cell is drawn. `fraction` colors it from 0 (best) to 1.

    Without a fraction, a measured cell gets a cross, and any other one a dotted frame.
    """

    fraction: float | None
    measured: bool = True
    text: str = ""


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


def draw_cells(
    axes: Axes, x: Sequence[float], y: Sequence[float], look_of: Callable[[int, int], CellLook | None]
) -> None:
    """Draw a cell for each pair of centers; `look_of(i, j)` is the look of the cell at x[i], y[j]."""
    axes.grid(visible=False)
    x_edges, y_edges = cell_edges(x), cell_edges(y)
    for j, ends in enumerate(pairwise(y_edges)):
        for i, sides in enumerate(pairwise(x_edges)):
            if (look := look_of(i, j)) is not None:
                _draw_cell(axes, sides, ends, look)
    axes.set_xlim(x_edges[0], x_edges[-1])
    axes.set_ylim(y_edges[0], y_edges[-1])
    if max(len(x), len(y)) <= MOST_TICKS:
        axes.set_xticks(x, [f"{at:.3g}" for at in x])
        axes.set_yticks(y, [f"{at:.3g}" for at in y])


def _draw_cell(axes: Axes, sides: tuple[float, float], ends: tuple[float, float], look: CellLook) -> None:
    (left, right), (low, high) = sides, ends
    side, rise = GAP * (right - left), GAP * (high - low)
    box = ((left + side, low + rise), right - left - 2 * side, high - low - 2 * rise)
    center = ((left + right) / 2, (low + high) / 2)
    if look.fraction is None:
        line = "-" if look.measured else ":"
        axes.add_patch(Rectangle(*box, fill=False, edgecolor=INK, alpha=FAINT, linewidth=0.7, linestyle=line))
        if look.measured:
            axes.plot(*center, marker="x", color=INK, markersize=7, markeredgewidth=1.6, linestyle="none")
        return
    color = style.cell_color(look.fraction)
    axes.add_patch(Rectangle(*box, facecolor=color, linewidth=0))
    if look.text:
        axes.text(*center, look.text, ha="center", va="center", fontsize=SMALL - 1, color=style.text_on(color))


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
    top_nats: float, *, star: str | None, diverged: bool, missing: bool, judged: JudgedLoss = NATS
) -> list[Artist]:
    """Return the legend of the cells and marks that appear in a figure. `star` is the label of the star."""
    out: list[Artist] = [
        Patch(facecolor=style.cell_color(0.0), label="best"),
        Patch(facecolor=style.cell_color(1.0), label=above_best(top_nats, judged)),
    ]
    if star is not None:
        out.append(Line2D([], [], label=star, **_STAR))  # type: ignore[arg-type]
    if diverged:
        out.append(Line2D([], [], marker="x", color=INK, linestyle="none", label="diverged"))
    if missing:
        out.append(Patch(fill=False, edgecolor=INK, alpha=FAINT, linestyle=":", label="no result"))
    return out
