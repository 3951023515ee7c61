"""Two HPs refined together: the points of each arm, the contours of the surface, and its optimum or ridge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.joint_optimum import JointOptimum, JointPoint
from hpxfer.figures import style
from hpxfer.figures.heatmap import above_best, draw_star, top_rise
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed, octaves_of, why_none
from hpxfer.results import Results
from hpxfer.search.quadratic import Floats
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.thresholds import CONTROL

MOST_PANELS = 6
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the regret limit: the rises over the lowest fitted loss that get a contour
GRID = 61  # points per side that contours are drawn through
MARGIN = 0.4  # octaves
REGION = "#d55e00"
RIDGE = "#cc79a7"


@dataclass(frozen=True, kw_only=True)
class ContoursInfo:
    """One panel per arm: `first` on the x-axis and `second` on the y-axis."""

    title: str
    caption: str
    first: str
    second: str
    top_nats: float  # the rise over an arm's best point that gets the lightest color
    panels: tuple[JointOptimum, ...]
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per point, with the fitted loss beside the measured one."""
        rows = [
            (*(panel.parameterization, panel.shape, point.round, point.log2_first, point.log2_second), point.loss, fit)
            for panel in self.panels
            for point, fit in zip(panel.points, _fitted(panel), strict=True)
        ]
        names = ["parameterization", "shape", "round", f"log2_{self.first}", f"log2_{self.second}"]
        return pd.DataFrame(rows, columns=[*names, "loss_nats", "fitted_nats"]).rename(columns=self.judged.column)


def _fitted(panel: JointOptimum) -> list[float | None]:
    if panel.surface is None:
        return [None] * len(panel.points)
    found: list[float | None] = panel.surface.at(_places(panel.points)).tolist()
    return found


def _places(points: Sequence[JointPoint]) -> Floats:
    return np.array([(point.log2_first, point.log2_second) for point in points], dtype=float)


def contours_info(found: Sequence[JointOptimum], control: str | None = CONTROL) -> ContoursInfo | str:
    """Return what the figure shows, or why there is none. The base comes first, a control last at its shape."""
    kept = [one for one in found if one.best_nats is not None]
    if not kept:
        return why_none((one.why_not for one in found), "no round has ended")
    kept = sorted(kept, key=lambda one: not one.is_base)
    kept = [one for is_base in (True, False) for one in _of(kept, is_base, control)]
    left_out = len(kept) - MOST_PANELS
    return ContoursInfo(
        title=listed([one.finding for one in kept], 2),
        caption="Dots: mean loss over seeds, dark at the best point of the arm. A cross means that a seed diverged. "
        f"Lines: the fitted surface at {', '.join(f'{share:g}' for share in SHARES)} times the regret limit above its "
        "lowest value in the panel. Star: the best measured point. Ellipse: the 95% region of the lowest point. A "
        "band marks a ridge: along it the loss stays within the regret limit."
        + (f" {left_out} more arms are in the data." if left_out > 0 else ""),
        first=kept[0].first,
        second=kept[0].second,
        top_nats=top_rise(rise for one in kept for rise in _rises(one) if rise is not None),
        panels=tuple(kept),
        judged=kept[0].judged,
    )


def _of(found: Sequence[JointOptimum], is_base: bool, control: str | None) -> list[JointOptimum]:
    """Return the arms at the base or elsewhere, the control last at each shape. Shapes keep their order."""
    shapes = list(dict.fromkeys(one.shape for one in found))
    of = [one for one in found if one.is_base == is_base]
    return sorted(of, key=lambda one: (shapes.index(one.shape), control_last(one.parameterization, control)))


def _rises(one: JointOptimum) -> list[float | None]:
    best = one.best_nats or 0.0
    return [None if point.loss is None else max(point.loss - best, 0.0) for point in one.points]


def draw_contours(info: ContoursInfo) -> Figure:
    """Return the figure: one panel per arm."""
    shown = info.panels[:MOST_PANELS]
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=3.4, foot=0.6)
        draw_contour_panels(figure, grid, info)
    return figure


def draw_contour_panels(figure: FigureBase, grid: Sequence[Axes], info: ContoursInfo, characters: int = 46) -> None:
    """Draw as many arms as there are axes, each under a title with so many characters in a line, and the legend."""
    shown = info.panels[: len(grid)]
    for axes, panel in zip(grid, shown, strict=True):
        base = " (base)" if panel.is_base else ""
        axes.set_title(style.wrapped(f"{panel.shape}{base}, {panel.parameterization}", characters))
        _draw_panel(axes, panel, info.top_nats)
        axes.set_xlabel(octaves_of(info.first))
        axes.set_ylabel(octaves_of(info.second))
    style.legend_below(figure, list(_handles(shown, info.top_nats, info.judged)), columns=4)


def _draw_panel(axes: Axes, panel: JointOptimum, top_nats: float) -> None:
    places = _places(panel.points)
    low, high = places.min(axis=0) - MARGIN, places.max(axis=0) + MARGIN
    _draw_lines(axes, panel, low, high)
    if panel.ridge_ends:
        x, y = zip(*panel.ridge_ends, strict=True)
        axes.plot(x, y, color=RIDGE, linewidth=7, alpha=0.45, solid_capstyle="round", zorder=2)
    for point, rise in zip(panel.points, _rises(panel), strict=True):
        if rise is None:
            look = {"marker": "x", "color": INK, "markersize": 7}
        else:
            color = style.cell_color(rise / top_nats)
            look = {"marker": "o", "color": color, "markeredgecolor": INK, "markeredgewidth": 0.5, "markersize": 7}
        axes.plot(point.log2_first, point.log2_second, linestyle="none", zorder=3, **look)  # type: ignore[arg-type]
    ellipse = _ellipse(panel)
    if ellipse is not None:
        axes.plot(ellipse[:, 0], ellipse[:, 1], color=REGION, linewidth=1.8, zorder=4)
    assert panel.best_first is not None
    assert panel.best_second is not None
    draw_star(axes, float(np.log2(panel.best_first)), float(np.log2(panel.best_second)))
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    style.whole_octaves(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def _draw_lines(axes: Axes, panel: JointOptimum, low: Floats, high: Floats) -> None:
    if panel.surface is None or panel.limit_nats is None:
        return
    x, y = (np.linspace(low[i], high[i], GRID) for i in range(2))
    fitted = panel.surface.at(np.stack(np.meshgrid(x, y), axis=-1))
    levels = [float(fitted.min()) + share * panel.limit_nats for share in SHARES]
    shown = [level for level in levels if level < fitted.max()]
    if shown:
        axes.contour(x, y, fitted, levels=shown, colors=[INK], linewidths=0.9, alpha=FAINT, zorder=1)


def _ellipse(panel: JointOptimum) -> Floats | None:
    """Return the edge of the region of the lowest point (N, 2), or None if it is not known."""
    if panel.surface is None or panel.surface.covariance is None or panel.log2_first is None:
        return None
    a, b, c = panel.surface.covariance
    values, vectors = np.linalg.eigh(np.array([[a, b], [b, c]]))
    turn = np.linspace(0, 2 * np.pi, 73)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    edge: Floats = np.array([panel.log2_first, panel.log2_second]) + panel.surface.reach * circle @ root.T
    return edge


def _handles(panels: Sequence[JointOptimum], top_nats: float, judged: JudgedLoss) -> Iterator[Artist]:
    dot = {"marker": "o", "linestyle": "none", "markeredgecolor": INK, "markeredgewidth": 0.5}
    yield Line2D([], [], color=style.cell_color(0.0), label="best", **dot)  # type: ignore[arg-type]
    yield Line2D([], [], color=style.cell_color(1.0), label=above_best(top_nats, judged), **dot)  # type: ignore[arg-type]
    if any(point.loss is None for panel in panels for point in panel.points):
        yield Line2D([], [], marker="x", color=INK, linestyle="none", label="diverged")
    if any(panel.surface is not None for panel in panels):
        yield Line2D([], [], color=INK, alpha=FAINT, linewidth=0.9, label="fitted surface")
    if any(_ellipse(panel) is not None for panel in panels):
        yield Line2D([], [], color=REGION, linewidth=1.8, label="95% region")
    if any(panel.ridge_ends for panel in panels):
        yield Line2D([], [], color=RIDGE, linewidth=7, alpha=0.45, label="ridge")


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = analysis.found("joint_optima")
    return {"-".join(results.spec.grid): contours_info(found, analysis.control)} if found else {}


SEARCH_CONTOURS = SweepFigure(
    name="search-contours",
    question="Where is the optimum of the two HPs together?",
    infos=_infos,
    draw=draw_contours,
    under_verdict=True,
)
