"""Best loss so far against trials, one line per arm: what arms with equal budgets reached, and how fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.search_best import ArmBest
from hpxfer.analysis.statistics.search_progress import ArmProgress, search_progress
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed
from hpxfer.results import Results
from hpxfer.search.kinds import kind_of
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.thresholds import CONTROL

MOST_PANELS = 6
SHOWN_QUANTILE = 0.8  # of the losses: those above are not drawn, as the first points of a search may lie far up
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True)
class ShapePanel:
    """The arms of one shape."""

    shape: str
    is_base: bool
    equal_trials: int  # that each arm has had
    arms: tuple[ArmProgress, ...]


def _traces(arm: ArmProgress) -> list[tuple[int, float | None, float | None]]:
    """Return (trials, loss, lowest loss so far) for each point. A loss is None if a seed diverged."""
    return [
        (point.num_trials, point.mean if math.isfinite(point.mean) else None, None if best is None else best.mean)
        for point, best in zip(arm.points, arm.best_so_far, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class SearchBestInfo:
    """The searches at all shapes, the base's first."""

    title: str
    caption: str
    panels: tuple[ShapePanel, ...]
    judged: JudgedLoss = NATS
    control: str | None = CONTROL

    def table(self) -> pd.DataFrame:
        """Return one row per point, in the order in which the points ended."""
        rows = [
            (panel.shape, arm.parameterization, *row)
            for panel in self.panels
            for arm in panel.arms
            for row in _traces(arm)
        ]
        return pd.DataFrame(rows, columns=["shape", "parameterization", "num_trials", "loss_nats", "best_nats"]).rename(
            columns=self.judged.column
        )


def search_best_info(
    arms: Sequence[ArmProgress],
    found: Sequence[ArmBest],
    kind: str,
    judged: JudgedLoss = NATS,
    control: str | None = CONTROL,
) -> SearchBestInfo | str:
    """Return what the figure of a search of this kind shows, or why there is none."""
    shapes = dict.fromkeys(arm.shape for arm in arms if arm.points)
    if not shapes:
        return "no point has ended with every seed"
    panels = tuple(_panel([arm for arm in arms if arm.shape == shape], control) for shape in shapes)
    left_out = len(panels) - MOST_PANELS
    return SearchBestInfo(
        title=f"{kind}: {listed([_leader(shape, found, judged) for shape in shapes], 2)}",
        caption="A dot is a point's mean loss over seeds, and the line is the lowest loss so far, both over the trials "
        "that had ended. A cross at the top is a point with a diverged seed. Arms of a shape are compared over as many "
        "trials as each of them has had; a dotted line marks this number where an arm has had more. The lowest loss of "
        "many is partly luck." + (f" {left_out} more shapes are in the data." if left_out > 0 else ""),
        panels=panels,
        judged=judged,
        control=control,
    )


def _panel(arms: Sequence[ArmProgress], control: str | None) -> ShapePanel:
    return ShapePanel(
        shape=arms[0].shape,
        is_base=arms[0].is_base,
        equal_trials=min(arm.num_trials for arm in arms),
        arms=tuple(sorted(arms, key=lambda arm: control_last(arm.parameterization, control))),
    )


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


def draw_search_best(info: SearchBestInfo) -> Figure:
    """Return the figure: one panel per shape."""
    shown = info.panels[:MOST_PANELS]
    there = {arm.parameterization for panel in shown for arm in panel.arms}
    names = sorted(there, key=lambda name: control_last(name, info.control))
    look_of = style.marks(names, info.control)
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=2.9, foot=0.55)
        handles = {}
        for axes, panel in zip(grid, shown, strict=True):
            axes.set_title(panel.shape + (" (base)" if panel.is_base else ""))
            low, top = _limits(panel)
            for arm in panel.arms:
                handles[arm.parameterization] = _draw_arm(axes, arm, look_of[arm.parameterization], top)
            if panel.equal_trials < max(arm.num_trials for arm in panel.arms):
                axes.axvline(panel.equal_trials, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
            axes.set_ylim(low, top)
            axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))
            axes.set_xlabel("trials of the arm")
            axes.set_ylabel(f"loss ({info.judged.unit})")
        style.legend_below(figure, [handles[name] for name in names if name in handles], columns=3)
    return figure


def _limits(panel: ShapePanel) -> tuple[float, float]:
    known = [point.mean for arm in panel.arms for point in arm.points if math.isfinite(point.mean)]
    if not known:
        return 0.0, 1.0
    low, top = min(known), float(np.quantile(known, SHOWN_QUANTILE))
    height = max(top - low, 1e-3)
    return low - 0.06 * height, top + 0.12 * height


def _draw_arm(axes: Axes, arm: ArmProgress, mark: tuple[str, str], top: float) -> Line2D:
    """Draw an arm and return its line, for the legend."""
    color, marker = mark
    traces = _traces(arm)
    finished = [(num, loss) for num, loss, _ in traces if loss is not None]
    x, y = style.thinned([num for num, _ in finished], [loss for _, loss in finished])
    axes.plot(x, y, color=color, marker=marker, markersize=3.5, linestyle="none", alpha=0.45)
    diverged = [num for num, loss, _ in traces if loss is None]
    for num in style.thinned(diverged, diverged)[0]:
        axes.plot(num, top, color=color, marker="x", markersize=5, clip_on=False)
    # The lowest loss so far changes at these points, and its line goes on to the last trial.
    corners: list[tuple[int, float]] = []
    for num, _, best in traces:
        if best is not None and (not corners or best < corners[-1][1]):
            corners.append((num, best))
    corners += [(arm.num_trials, best) for _, best in corners[-1:]]
    x, y = ([corner[i] for corner in corners] for i in range(2))
    (line,) = axes.plot(x, y, color=color, linewidth=1.8, drawstyle="steps-post", label=arm.parameterization, zorder=3)
    return line


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    if kind_of(results.spec).lists_trials:  # a grid chooses nothing
        return {}
    arms, found = search_progress(results), analysis.found("search_best")
    return (
        {"": search_best_info(arms, found, results.spec.search.kind, analysis.judged, analysis.control)} if arms else {}
    )


SEARCH_BEST = SweepFigure(
    name="search-best",
    question="Which arm of the search is ahead at equal budgets?",
    infos=_infos,
    draw=draw_search_best,
)
