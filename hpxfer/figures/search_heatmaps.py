"""Heatmaps of a staged grid: the best loss over each pair of dimensions, and what tuning a pair alone costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed
from hpxfer.search.staged_grid import STAGES, Heatmap, heatmaps
from hpxfer.verdict.loss_grid import NATS, JudgedLoss

# White within black, so that the square shows on cells of any color and around a star.
_SQUARES = (("#000000", 3.2), ("#ffffff", 1.6))
_SQUARE_SIZE = 17
View = Literal["lowest", "through_best"]
_COLORS: dict[View, str] = {
    "lowest": "the lowest mean loss over seeds, over all values of the other dimensions.",
    "through_best": "the mean loss over seeds, with all other dimensions at the best point of the whole grid. A cross "
    "means that a seed diverged.",
}


@dataclass(frozen=True, kw_only=True)
class HeatmapsInfo:
    """All pairs of one stage of one arm."""

    title: str
    caption: str
    top_nats: float  # the rise over the best that gets the lightest color
    view: View
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


def heatmaps_info(found: Sequence[Heatmap], view: View = "lowest", judged: JudgedLoss = NATS) -> HeatmapsInfo | str:
    """Return what a figure of one stage of one arm shows, or why there is none."""
    if not found:
        return "the stage has one dimension, or is not over yet"
    colored = [loss for pair in found for row in getattr(pair, view) for loss in row if math.isfinite(loss)]
    best = found[0].best_nats
    worst = max(found, key=lambda pair: pair.cost_nats)
    cost = worst.cost_nats
    first = found[0]
    values = dict.fromkeys((name, _best_value(pair, name)) for pair in found for name in (pair.x, pair.y))
    share = f"{cost / depth:.1%}; " if (depth := abs(best)) else ""
    at_most = f"at most {judged.amount(cost)} ({share}{worst.x} with {worst.y})" if cost > 0 else "nothing"
    planes = ", planes through its best point" if view == "through_best" else ""
    return HeatmapsInfo(
        title=f"{first.arm}, {first.stage} grid{planes}: best at "
        + ", ".join(f"{name} {value:.3g}" for name, value in values)
        + f" ({judged.level(best)}); a pair tuned by itself costs {at_most}",
        caption=f"Color: {_COLORS[view]} Star: the best point of the whole grid. Square: the best point with all other "
        "dimensions at the grid's center, where the stage before ended, which is where tuning the pair alone would "
        "end. Its cost is how far the lowest loss at the square lies above the best. A cost within the noise of seeds "
        "says nothing. A larger cost says that the dimensions have to be tuned together.",
        view=view,
        top_nats=top_rise(loss - best for loss in colored),
        panels=tuple(found),
        judged=judged,
    )


def _best_value(pair: Heatmap, name: str) -> float:
    return pair.x_values[pair.best[0]] if name == pair.x else pair.y_values[pair.best[1]]


def draw_heatmaps(info: HeatmapsInfo) -> Figure:
    """Return the figure: one panel per pair."""
    columns = 2 if len(info.panels) < 3 else 3
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), columns=columns, height=2.6, foot=0.55)
        for axes, pair in zip(grid, info.panels, strict=True):
            _draw(axes, pair, info)
        diverged = any(math.isinf(loss) for pair in info.panels for row in getattr(pair, info.view) for loss in row)
        handles: list[Artist] = cell_handles(
            info.top_nats, star="best of all", diverged=diverged, missing=False, judged=info.judged
        )
        square = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": style.INK}
        handles.append(Line2D([], [], label="best of the pair alone", linestyle="none", **square))  # type: ignore[arg-type]
        style.legend_below(figure, handles, columns=5)
    return figure


def _draw(axes: Axes, pair: Heatmap, info: HeatmapsInfo) -> None:
    losses = getattr(pair, info.view)

    def look(i: int, j: int) -> CellLook:
        rise = losses[j][i] - pair.best_nats
        return CellLook(fraction=rise / info.top_nats if math.isfinite(rise) else None)

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
    out: dict[str, Info | str] = {}
    for played in replayed(results):
        found = list(heatmaps(played))
        for stage in STAGES:
            of_stage = [pair for pair in found if pair.stage == stage]
            name = f"{played.strategy.arm.name}-{stage}"
            out[name] = heatmaps_info(of_stage, judged=analysis.judged)
            if len(of_stage) > 1:  # with two dimensions there is one plane, and it is all there is
                out[f"{name}-planes"] = heatmaps_info(of_stage, "through_best", analysis.judged)
    return out


SEARCH_HEATMAPS = SweepFigure(
    name="search-heatmaps",
    question="Do the dimensions of a staged grid have to be tuned together?",
    infos=_infos,
    draw=draw_heatmaps,
)
