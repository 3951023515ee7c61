"""Staged grid: every pair of its dimensions, the best over all others, and where tuning the pair alone would end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.figures import style
from hpxfer.figures.cells import cell_edges, cell_handles, draw_cell, draw_star
from hpxfer.figures.surface import MIN_RISE, RISE_QUANTILE
from hpxfer.search.heatmaps import Heatmap

# White within black, as on cells of any color, and around a star at the same place.
_SQUARES = (("#000000", 3.2), ("#ffffff", 1.6))
_SQUARE_SIZE = 17


@dataclass(frozen=True, kw_only=True)
class HeatmapsInfo:
    """All pairs of one stage of one arm."""

    title: str
    caption: str
    top_nats: float  # the rise over the best with the lightest color
    panels: tuple[Heatmap, ...]

    def table(self) -> pd.DataFrame:
        """Return a row for each cell; a loss is None where everything diverged."""
        rows = [
            (one.arm, one.stage, one.x, one.y, x, y, *(_told(cells[j][i]) for cells in _cells(one)))
            for one in self.panels
            for i, x in enumerate(one.x_values)
            for j, y in enumerate(one.y_values)
        ]
        columns = ["arm", "stage", "x", "y", "x_value", "y_value", "lowest_nats", "through_best_nats", "at_center_nats"]
        return pd.DataFrame(rows, columns=columns)


def _cells(one: Heatmap) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return one.lowest, one.through_best, one.at_center


def _told(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def heatmaps_info(found: Sequence[Heatmap]) -> HeatmapsInfo | str:
    """Return what the figure of one stage of one arm shows, or why there is none."""
    if not found:
        return "the stage has one dimension, or is not over yet"
    lowest = [loss for one in found for row in one.lowest for loss in row if math.isfinite(loss)]
    best = min(lowest)
    worst = max(found, key=pair_cost)
    cost = pair_cost(worst)
    first = found[0]
    where = dict.fromkeys((name, _value(one, name)) for one in found for name in (one.x, one.y))
    said = f"{cost:.2g} nats ({cost / abs(best):.1%}; {worst.x} with {worst.y})" if cost > 0 else "nothing"
    return HeatmapsInfo(
        title=f"{first.arm}, {first.stage} grid: best at "
        + ", ".join(f"{name} {value:.3g}" for name, value in where)
        + f" ({best:.4f} nats); a pair tuned by itself costs at most {said}",
        caption="Color: the lowest mean loss over seeds at any value of the other dimensions. Star: the best of the "
        "whole grid. Square: the best where all other dimensions stay at the grid's center, as if only the pair was "
        "tuned: what that costs is how far the lowest loss there lies above the best. Costs of the size of the noise "
        "of seeds say nothing; larger ones, that the dimensions have to be tuned together.",
        top_nats=max(float(np.quantile([loss - best for loss in lowest], RISE_QUANTILE)), MIN_RISE),
        panels=tuple(found),
    )


def pair_cost(one: Heatmap) -> float:
    """Return what the values of a pair cost that was tuned by itself, all others tuned after it, in nats."""
    x, y = one.in_plane
    return one.lowest[y][x] - min(map(min, one.lowest))


def _value(one: Heatmap, name: str) -> float:
    return one.x_values[one.best[0]] if name == one.x else one.y_values[one.best[1]]


def draw_heatmaps(info: HeatmapsInfo) -> Figure:
    """Return the figure: a panel a pair."""
    columns = 2 if len(info.panels) < 3 else 3
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), columns=columns, height=2.6, foot=0.55)
        best = min(min(map(min, one.lowest)) for one in info.panels)
        for axes, one in zip(grid, info.panels, strict=True):
            _draw(axes, one, best, info.top_nats)
        diverged = any(math.isinf(loss) for one in info.panels for row in one.lowest for loss in row)
        handles: list[Artist] = cell_handles(info.top_nats, star="best of all", diverged=diverged, missing=False)
        square = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": style.INK}
        handles.append(Line2D([], [], label="best of the pair alone", linestyle="none", **square))  # type: ignore[arg-type]
        figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


def _draw(axes: Axes, one: Heatmap, best: float, top_nats: float) -> None:
    axes.grid(visible=False)
    xs, ys = ([math.log2(value) for value in values] for values in (one.x_values, one.y_values))
    x_edges, y_edges = cell_edges(xs), cell_edges(ys)
    for i in range(len(xs)):
        for j in range(len(ys)):
            loss = one.lowest[j][i]
            share = (loss - best) / top_nats if math.isfinite(loss) else None
            draw_cell(axes, (x_edges[i], x_edges[i + 1]), (y_edges[j], y_edges[j + 1]), share)
    place = xs[one.in_plane[0]], ys[one.in_plane[1]]
    for color, width in _SQUARES:
        edge = {"markeredgecolor": color, "markeredgewidth": width}
        axes.plot(*place, marker="s", markersize=_SQUARE_SIZE, markerfacecolor="none", zorder=4, **edge)  # type: ignore[arg-type]
    draw_star(axes, xs[one.best[0]], ys[one.best[1]])
    axes.set_xlim(x_edges[0], x_edges[-1])
    axes.set_ylim(y_edges[0], y_edges[-1])
    axes.set_xlabel(f"log2 {one.x}")
    axes.set_ylabel(f"log2 {one.y}")
