"""Cells: a grid of losses as colored rectangles, for two HPs or an HP and a scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK, SMALL

GAP = 0.03  # of a side, between cells


def cell_edges(x: Sequence[float]) -> list[float]:
    """Return the sides of cells around ascending centers: halfway to the next, outside as far as inside."""
    if len(x) == 1:
        return [x[0] - 0.5, x[0] + 0.5]
    middles = [(one + other) / 2 for one, other in pairwise(x)]
    return [2 * x[0] - middles[0], *middles, 2 * x[-1] - middles[-1]]


def draw_cell(
    axes: Axes,
    x: tuple[float, float],
    y: tuple[float, float],
    share: float | None,
    *,
    measured: bool = True,
    text: str = "",
) -> None:
    """Draw a cell between its sides. `share` colors it, 0 (best) to 1; None is a cross if measured, else no result."""
    (left, right), (low, high) = x, y
    side, rise = GAP * (right - left), GAP * (high - low)
    place = ((left + side, low + rise), right - left - 2 * side, high - low - 2 * rise)
    center = ((left + right) / 2, (low + high) / 2)
    if share is None:
        line = "-" if measured else ":"
        axes.add_patch(Rectangle(*place, fill=False, edgecolor=INK, alpha=FAINT, linewidth=0.7, linestyle=line))
        if measured:
            axes.plot(*center, marker="x", color=INK, markersize=7, markeredgewidth=1.6, linestyle="none")
        return
    color = style.cell_color(share)
    axes.add_patch(Rectangle(*place, facecolor=color, linewidth=0))
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


def cell_handles(top_nats: float, *, star: str | None, diverged: bool, missing: bool) -> list[Artist]:
    """Return the legend of cells, of what appears in a figure."""
    out: list[Artist] = [
        Patch(facecolor=style.cell_color(0.0), label="best"),
        Patch(facecolor=style.cell_color(1.0), label=f"{top_nats:.2g} nats above, or more"),
    ]
    if star is not None:
        out.append(Line2D([], [], label=star, **_STAR))  # type: ignore[arg-type]
    if diverged:
        out.append(Line2D([], [], marker="x", color=INK, linestyle="none", label="diverged"))
    if missing:
        out.append(Patch(fill=False, edgecolor=INK, alpha=FAINT, linestyle=":", label="no result"))
    return out
