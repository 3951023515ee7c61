"""Heatmaps of a staged grid: the best loss over each pair of dimensions, and what tuning a pair alone costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.heatmap import CellLook, cell_handles, draw_cells, draw_star, top_rise
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.text import octaves_of
from hpxfer.results import Results
from hpxfer.search.heatmaps import Heatmap, heatmaps
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed
from hpxfer.search.staged_grid import STAGES
from hpxfer.verdict.loss import NATS, JudgedLoss

# White within black, so that the square shows on cells of any color and around a star.
_SQUARES = (("#000000", 3.2), ("#ffffff", 1.6))
_SQUARE_SIZE = 17


@dataclass(frozen=True, kw_only=True)
class HeatmapsInfo:
    """All pairs of one stage of one arm."""

    title: str
    caption: str
    top_nats: float  # the rise over the best that gets the lightest color
    panels: tuple[Heatmap, ...]
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per cell. A loss is missing where everything diverged."""
        rows = [
            (pair.arm, pair.stage, pair.x, pair.y, x, y, *(_finite(losses[j][i]) for losses in _losses(pair)))
            for pair in self.panels
            for i, x in enumerate(pair.x_values)
            for j, y in enumerate(pair.y_values)
        ]
        columns = ["arm", "stage", "x", "y", "x_value", "y_value", "lowest_nats", "through_best_nats", "at_center_nats"]
        return pd.DataFrame(rows, columns=columns).rename(columns=self.judged.column)


def _losses(pair: Heatmap) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return pair.lowest, pair.through_best, pair.at_center


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def heatmaps_info(found: Sequence[Heatmap], judged: JudgedLoss = NATS) -> HeatmapsInfo | str:
    """Return what the figure of one stage of one arm shows, or why there is none."""
    if not found:
        return "the stage has one dimension, or is not over yet"
    lowest = [loss for pair in found for row in pair.lowest for loss in row if math.isfinite(loss)]
    best = min(lowest)
    worst = max(found, key=pair_cost)
    cost = pair_cost(worst)
    first = found[0]
    values = dict.fromkeys((name, _best_value(pair, name)) for pair in found for name in (pair.x, pair.y))
    share = f"{cost / depth:.1%}; " if (depth := judged.basin_depth(best)) else ""
    at_most = f"at most {judged.amount(cost)} ({share}{worst.x} with {worst.y})" if cost > 0 else "nothing"
    return HeatmapsInfo(
        title=f"{first.arm}, {first.stage} grid: best at "
        + ", ".join(f"{name} {value:.3g}" for name, value in values)
        + f" ({judged.level_with_unit(best)}); a pair tuned by itself costs {at_most}",
        caption="Color: the lowest mean loss over seeds, over all values of the other dimensions. Star: the best "
        "point of the whole grid. Square: the best point with all other dimensions at the grid's center, which is "
        "where tuning the pair alone would end. Its cost is how far the lowest loss at the square lies above the best. "
        "A cost within the noise of seeds says nothing. A larger cost says that the dimensions have to be tuned "
        "together.",
        top_nats=top_rise(loss - best for loss in lowest),
        panels=tuple(found),
        judged=judged,
    )


def pair_cost(pair: Heatmap) -> float:
    """Return what it costs to tune a pair by itself first, and all other dimensions after it."""
    x, y = pair.in_plane
    return pair.lowest[y][x] - min(map(min, pair.lowest))


def _best_value(pair: Heatmap, name: str) -> float:
    return pair.x_values[pair.best[0]] if name == pair.x else pair.y_values[pair.best[1]]


def draw_heatmaps(info: HeatmapsInfo) -> Figure:
    """Return the figure: one panel per pair."""
    columns = 2 if len(info.panels) < 3 else 3
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), columns=columns, height=2.6, foot=0.55)
        best = min(min(map(min, pair.lowest)) for pair in info.panels)
        for axes, pair in zip(grid, info.panels, strict=True):
            _draw(axes, pair, best, info.top_nats)
        diverged = any(math.isinf(loss) for pair in info.panels for row in pair.lowest for loss in row)
        handles: list[Artist] = cell_handles(
            info.top_nats, star="best of all", diverged=diverged, missing=False, judged=info.judged
        )
        square = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": style.INK}
        handles.append(Line2D([], [], label="best of the pair alone", linestyle="none", **square))  # type: ignore[arg-type]
        style.legend_below(figure, handles, columns=5)
    return figure


def _draw(axes: Axes, pair: Heatmap, best: float, top_nats: float) -> None:
    def look(i: int, j: int) -> CellLook:
        loss = pair.lowest[j][i]
        return CellLook(fraction=(loss - best) / top_nats if math.isfinite(loss) else None)

    xs, ys = ([math.log2(value) for value in values] for values in (pair.x_values, pair.y_values))
    draw_cells(axes, xs, ys, look)
    center = xs[pair.in_plane[0]], ys[pair.in_plane[1]]
    for color, width in _SQUARES:
        edge = {"markeredgecolor": color, "markeredgewidth": width}
        axes.plot(*center, marker="s", markersize=_SQUARE_SIZE, markerfacecolor="none", zorder=4, **edge)  # type: ignore[arg-type]
    draw_star(axes, xs[pair.best[0]], ys[pair.best[1]])
    axes.set_xlabel(octaves_of(pair.x))
    axes.set_ylabel(octaves_of(pair.y))


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    if kind_of(results.spec).shows != "heatmaps":
        return {}
    return {
        f"{played.strategy.arm.name}-{stage}": heatmaps_info(
            [pair for pair in heatmaps(played) if pair.stage == stage], analysis.judged
        )
        for played in replayed(results)
        for stage in STAGES
    }


SEARCH_HEATMAPS = SweepFigure(
    name="search-heatmaps",
    question="Do the dimensions of a staged grid have to be tuned together?",
    infos=_infos,
    draw=draw_heatmaps,
)
