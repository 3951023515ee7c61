"""Searches: the best loss so far against trials, and how sure each verdict was against FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed
from hpxfer.results import Results
from hpxfer.search import MOST_DOUBT, ArmBest, ArmPoints, DoubtLook, arm_points, doubt_looks, kind_of
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

MOST_PANELS = 6
SHOWN_QUANTILE = 0.8  # of the losses: those above are not drawn, as the first points of a search may lie far up
STANDARD_ERRORS = 2.0
LEAST_DOUBT = 1e-4  # smaller doubts are drawn here: no estimate is that sure
DOUBT_TICKS = (LEAST_DOUBT, 1e-3, 1e-2, 1e-1, MOST_DOUBT)


@dataclass(frozen=True, kw_only=True)
class SearchInfo:
    """What a figure of a search shows: rows of the search's report, and their columns in its data."""

    title: str
    caption: str
    rows: tuple[Any, ...]
    columns: Mapping[str, str] | Sequence[str]  # field of a row -> column
    judged: JudgedLoss = NATS
    control: str | None = CONTROL
    given: Mapping[str, Any] = field(default_factory=dict)  # what else the drawing needs

    def table(self) -> pd.DataFrame:
        """Return one row per row of the report."""
        named = self.columns if isinstance(self.columns, Mapping) else {name: name for name in self.columns}
        rows = [[getattr(row, name) for name in named] for row in self.rows]
        return pd.DataFrame(rows, columns=list(named.values())).rename(columns=self.judged.column)

    def names(self) -> list[str]:
        """Return the parameterizations of the rows, the control last."""
        return sorted({row.parameterization for row in self.rows}, key=lambda name: control_last(name, self.control))


@dataclass(frozen=True, kw_only=True)
class _Trace:
    """A point of an arm."""

    shape: str
    is_base: bool
    parameterization: str
    num_trials: int
    loss_nats: float | None  # None if a seed diverged
    best_nats: float | None  # the lowest so far


def search_best_info(
    arms: Sequence[ArmPoints],
    found: Sequence[ArmBest],
    kind: str,
    judged: JudgedLoss = NATS,
    control: str | None = CONTROL,
) -> SearchInfo | str:
    """Return what the figure of a search of this kind shows, or why there is none."""
    shapes = list(dict.fromkeys(arm.shape for arm in arms if arm.points))
    if not shapes:
        return "no point has ended with every seed"
    in_order = sorted(arms, key=lambda arm: control_last(arm.parameterization, control))
    rows = [
        _Trace(
            shape=shape,
            is_base=arm.is_base,
            parameterization=arm.parameterization,
            num_trials=point.num_trials,
            loss_nats=_finite(point.mean),
            best_nats=_finite(point.lowest),
        )
        for shape in shapes
        for arm in in_order
        if arm.shape == shape
        for point in arm.points
    ]
    left_out = len(shapes) - MOST_PANELS
    return SearchInfo(
        title=f"{kind}: {listed([_leader(shape, found, judged) for shape in shapes], 2)}",
        caption="A dot is a point's mean loss over seeds, and the line is the lowest loss so far, both over the trials "
        "that had ended. A cross at the top is a point with a diverged seed. Arms of a shape are compared over as many "
        "trials as each of them has had; a dotted line marks this number where an arm has had more. The lowest loss of "
        "many is partly luck." + (f" {left_out} more shapes are in the data." if left_out > 0 else ""),
        rows=tuple(rows),
        columns=("shape", "parameterization", "num_trials", "loss_nats", "best_nats"),
        judged=judged,
        control=control,
        given={"equal": {shape: min(arm.num_trials for arm in arms if arm.shape == shape) for shape in shapes}},
    )


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _leader(shape: str, found: Sequence[ArmBest], judged: JudgedLoss) -> str:
    """Return in words which arm of a shape is ahead."""
    known = [arm for arm in found if arm.shape == shape and arm.best_nats is not None]
    known.sort(key=lambda arm: arm.best_nats or 0.0)
    if not known:
        return f"nothing finished at {shape}"
    first = known[0]
    if len(known) == 1:
        best = judged.level(first.best_nats or 0.0)
        return f"at {shape} {best} after {first.num_trials} trials, at {first.at}"
    behind, se = known[1].behind_nats or 0.0, known[1].behind_se_nats
    sure = se is not None and behind > STANDARD_ERRORS * se
    error = "" if se is None else f" +- {se:.2g}"
    ahead = "is ahead of" if sure else "is not surely ahead of"
    by = f"{behind:.2g}{error} {judged.unit}"
    return f"at {shape} {first.parameterization} {ahead} {known[1].parameterization} ({by})"


def draw_search_best(info: SearchInfo) -> Figure:
    """Return the figure: one panel per shape."""
    panels = [(shape, list(rows)) for shape, rows in groupby(info.rows, key=lambda row: row.shape)][:MOST_PANELS]
    shown = {row.parameterization for _, rows in panels for row in rows}
    names = [name for name in info.names() if name in shown]
    look_of = style.marks(names, info.control)
    with style.look():
        figure, grid = style.panels(info.title, len(panels), height=2.9, foot=0.55)
        handles = {}
        for axes, (shape, rows) in zip(grid, panels, strict=True):
            axes.set_title(shape + (" (base)" if rows[0].is_base else ""))
            low, top = _ends([row.loss_nats for row in rows if row.loss_nats is not None])
            for name, of_arm in groupby(rows, key=lambda row: row.parameterization):
                handles[name] = _draw_arm(axes, list(of_arm), look_of[name], top)
            if info.given["equal"][shape] < max(row.num_trials for row in rows):
                axes.axvline(info.given["equal"][shape], color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
            axes.set_ylim(low, top)
            axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))
            axes.set_xlabel("trials of the arm")
            axes.set_ylabel(f"loss ({info.judged.unit})")
        style.legend_below(figure, [handles[name] for name in names], columns=3)
    return figure


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis over losses."""
    if not losses:
        return 0.0, 1.0
    low, top = min(losses), float(np.quantile(losses, SHOWN_QUANTILE))
    height = max(top - low, 1e-3)
    return low - 0.06 * height, top + 0.12 * height


def _draw_arm(axes: Axes, rows: Sequence[_Trace], mark: tuple[str, str], top: float) -> Line2D:
    """Draw an arm and return its line, for the legend."""
    color, marker = mark
    finished = [(row.num_trials, row.loss_nats) for row in rows if row.loss_nats is not None]
    x, y = style.thinned([num for num, _ in finished], [loss for _, loss in finished])
    axes.plot(x, y, color=color, marker=marker, markersize=3.5, linestyle="none", alpha=0.45)
    diverged = [row.num_trials for row in rows if row.loss_nats is None]
    for num in style.thinned(diverged, diverged)[0]:
        axes.plot(num, top, color=color, marker="x", markersize=5, clip_on=False)
    # The lowest loss so far changes at these points, and its line goes on to the last trial.
    known = [(row.num_trials, row.best_nats) for row in rows if row.best_nats is not None]
    corners = [next(same) for _, same in groupby(known, key=lambda corner: corner[1])]
    corners += [(rows[-1].num_trials, best) for _, best in corners[-1:]]
    x, y = ([corner[i] for corner in corners] for i in range(2))
    label = rows[0].parameterization
    (line,) = axes.plot(x, y, color=color, linewidth=1.8, drawstyle="steps-post", label=label, zorder=3)
    return line


def _best_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    arms = () if kind_of(results.spec).lists_trials else arm_points(results)  # a grid chooses nothing
    found = analysis.found("search_best")
    return (
        {"": search_best_info(arms, found, results.spec.search.kind, analysis.judged, analysis.control)} if arms else {}
    )


SEARCH_BEST = SweepFigure(
    name="search-best",
    question="Which arm of the search is ahead at equal budgets?",
    infos=_best_infos,
    draw=draw_search_best,
)


def doubt_info(
    looks: Iterable[DoubtLook], error: float, unit: str = "FLOPs", control: str | None = CONTROL
) -> SearchInfo | str:
    """Return what the figure of the looks at each verdict shows, or why there is none.

    `unit` is that of what was spent.
    """
    rows = tuple(looks)
    if all(row.doubt == MOST_DOUBT for row in rows):
        return "no shape has been compared with the base yet"
    last = {f"{row.parameterization} along {row.axis}": row.verdict for row in rows}
    said = [f"{what} {verdict}" for what, verdict in last.items() if verdict not in (None, "undecided")]
    spent = max(row.share_of_grid_flops for row in rows)
    return SearchInfo(
        title=f"After {spent:.0%} of the {unit} of the whole grid: {listed(said, 3) if said else 'nothing is decided'}",
        caption="Doubt is the chance of being wrong if the likelier verdict were said at that moment. It is 0.5 where "
        f"nothing is known. A verdict is said below the dashed line. The {unit} are those of the trials that had "
        "ended, as a share of what the grid of the sweep file takes with all its seeds and parameterizations.",
        rows=rows,
        columns=("axis", "parameterization", "share_of_grid_flops", "doubt"),
        control=control,
        given={"error": error, "unit": unit},
    )


def draw_doubt(info: SearchInfo) -> Figure:
    """Return the figure: one panel per axis."""
    panels = list(dict.fromkeys(row.axis for row in info.rows))[:MOST_PANELS]
    names = info.names()
    look_of = style.marks(names, info.control)
    furthest = max(1.0, *(row.share_of_grid_flops for row in info.rows))
    with style.look():
        figure, grid = style.panels(info.title, len(panels), height=2.9, foot=0.55)
        for axes, panel in zip(grid, panels, strict=True):
            axes.set_title(panel)
            of_panel = [row for row in info.rows if row.axis == panel]
            for name, path in groupby(of_panel, key=lambda row: row.parameterization):
                color, marker = look_of[name]
                x, y = zip(*((row.share_of_grid_flops, max(LEAST_DOUBT, row.doubt)) for row in path), strict=True)
                axes.plot(x, y, color=color, marker=marker, markersize=4, drawstyle="steps-post")
            axes.axhline(info.given["error"], color=INK, alpha=FAINT, linestyle="--", linewidth=1.2)
            axes.axvline(1.0, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator(DOUBT_TICKS))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda doubt, _: f"{doubt:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylim(0.7 * LEAST_DOUBT, 1.4 * MOST_DOUBT)
            axes.set_xlim(0.0, 1.03 * furthest)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_xlabel(f"{info.given['unit']} spent, as a share of the whole grid")
            axes.set_ylabel("doubt: chance of a wrong verdict")
        style.legend_below(figure, list(_doubt_handles(look_of, info.given["error"])), columns=4)
    return figure


def _doubt_handles(look_of: Mapping[str, tuple[str, str]], error: float) -> Iterator[Line2D]:
    for name, (color, marker) in look_of.items():
        yield Line2D([], [], color=color, marker=marker, markersize=4, label=name)
    yield Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label=f"said below {error:g}")


def _doubt_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    kind = kind_of(results.spec)
    if kind.lists_trials or kind.tunes != "lines" or results.why_no_line() is not None:
        return {}  # a grid trains in the order that fills the workers: its path says nothing about the grid
    rules = results.rules
    unit = "FLOPs" if results.spec.trainer is None else "tokens"  # see `relative_cost`
    return {"": doubt_info(doubt_looks(results, results.line(), rules), rules.error, unit, rules.control)}


DOUBT = SweepFigure(
    name="doubt", question="How sure was each verdict, at which cost?", infos=_doubt_infos, draw=draw_doubt
)
