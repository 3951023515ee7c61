"""Best so far against trials, an arm a line: what a search of equal budgets came to, and how fast."""

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

from hpxfer.analysis.search_best import ArmBest
from hpxfer.analysis.search_progress import ArmProgress
from hpxfer.analysis.thresholds import CONTROL
from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.words import control_last, listed

MOST_PANELS = 6
SHOWN_QUANTILE = 0.8  # of the points above which losses are not drawn: a search's first points may lie far up
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True)
class ArmTrace:
    """One arm: loss of each point in nats, None if a seed diverged, and the lowest so far."""

    parameterization: str
    num_trials: tuple[int, ...]
    losses: tuple[float | None, ...]
    best: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class ShapePanel:
    """The arms of one shape."""

    shape: str
    is_base: bool
    equal_trials: int  # that every arm has had
    arms: tuple[ArmTrace, ...]


@dataclass(frozen=True, kw_only=True)
class SearchBestInfo:
    """The searches at all shapes, the base's first."""

    title: str
    caption: str
    panels: tuple[ShapePanel, ...]

    def table(self) -> pd.DataFrame:
        """Return a row for each point, in the order in which they ended."""
        rows = [
            (panel.shape, arm.parameterization, *row)
            for panel in self.panels
            for arm in panel.arms
            for row in zip(arm.num_trials, arm.losses, arm.best, strict=True)
        ]
        return pd.DataFrame(rows, columns=["shape", "parameterization", "num_trials", "loss_nats", "best_nats"])


def search_best_info(arms: Sequence[ArmProgress], found: Sequence[ArmBest], kind: str) -> SearchBestInfo | str:
    """Return what the figure shows, or why there is none."""
    if kind == "grid":
        return "the sweep is a grid: it has no search to follow"
    shapes = dict.fromkeys(one.shape for one in arms if one.points)
    if not shapes:
        return "no point has ended with every seed"
    panels = tuple(_panel([one for one in arms if one.shape == shape], found) for shape in shapes)
    left_out = len(panels) - MOST_PANELS
    return SearchBestInfo(
        title=f"{kind}: {listed([_said(shape, found) for shape in shapes], 2)}",
        caption="A dot is a point's mean loss over seeds, a line the lowest so far, both by the trials that had ended; "
        "a cross at the top is a point of which a seed diverged. Arms of a shape are compared over as many trials as "
        "each has had: up to the dotted line, where one has had fewer. The lowest of many is partly luck."
        + (f" {left_out} more shapes are in the data." if left_out > 0 else ""),
        panels=panels,
    )


def _panel(arms: Sequence[ArmProgress], found: Sequence[ArmBest]) -> ShapePanel:
    ordered = sorted(arms, key=lambda one: control_last(one.parameterization))
    return ShapePanel(
        shape=arms[0].shape,
        is_base=arms[0].is_base,
        equal_trials=min(one.num_trials for one in arms),
        arms=tuple(
            ArmTrace(
                parameterization=one.parameterization,
                num_trials=tuple(point.num_trials for point in one.points),
                losses=tuple(point.mean if math.isfinite(point.mean) else None for point in one.points),
                best=tuple(None if best is None else best.mean for best in one.best_so_far),
            )
            for one in ordered
        ),
    )


def _said(shape: str, found: Sequence[ArmBest]) -> str:
    """Return in words which arm of a shape is ahead."""
    told = [one for one in found if one.shape == shape and one.best_nats is not None]
    told.sort(key=lambda one: one.best_nats or 0.0)
    if not told:
        return f"nothing finished at {shape}"
    first = told[0]
    if len(told) == 1:
        return f"at {shape} {first.best_nats:.4f} nats after {first.num_trials} trials, at {first.at}"
    behind, se = told[1].behind_nats or 0.0, told[1].behind_se_nats
    sure = se is not None and behind > STANDARD_ERRORS * se
    error = "" if se is None else f" +- {se:.2g}"
    ahead = "is ahead of" if sure else "is not surely ahead of"
    return f"at {shape} {first.parameterization} {ahead} {told[1].parameterization} ({behind:.2g}{error} nats)"


def draw_search_best(info: SearchBestInfo) -> Figure:
    """Return the figure: a panel a shape."""
    shown = info.panels[:MOST_PANELS]
    names = sorted({arm.parameterization for panel in shown for arm in panel.arms}, key=control_last)
    look_of = style.marks(names, CONTROL)
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=2.9, foot=0.55)
        handles = {}
        for axes, panel in zip(grid, shown, strict=True):
            axes.set_title(panel.shape + (" (base)" if panel.is_base else ""))
            low, top = _limits(panel)
            for arm in panel.arms:
                handles[arm.parameterization] = _draw_arm(axes, arm, look_of[arm.parameterization], top)
            if panel.equal_trials < max(arm.num_trials[-1] for arm in panel.arms if arm.num_trials):
                axes.axvline(panel.equal_trials, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
            axes.set_ylim(low, top)
            axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))
            axes.set_xlabel("trials of the arm")
            axes.set_ylabel("loss (nats)")
        ordered = [handles[name] for name in names if name in handles]
        figure.legend(handles=ordered, loc="outside lower center", ncols=min(len(ordered), 3))
    return figure


def _limits(panel: ShapePanel) -> tuple[float, float]:
    known = [loss for arm in panel.arms for loss in arm.losses if loss is not None]
    if not known:
        return 0.0, 1.0
    low, top = min(known), float(np.quantile(known, SHOWN_QUANTILE))
    room = max(top - low, 1e-3)
    return low - 0.06 * room, top + 0.12 * room


def _draw_arm(axes: Axes, arm: ArmTrace, mark: tuple[str, str], top: float) -> Line2D:
    """Draw an arm and return its line, for the legend."""
    color, marker = mark
    told = [(num, loss) for num, loss in zip(arm.num_trials, arm.losses, strict=True) if loss is not None]
    x, y = style.thinned([num for num, _ in told], [loss for _, loss in told])
    axes.plot(x, y, color=color, marker=marker, markersize=3.5, linestyle="none", alpha=0.45)
    lost = [num for num, loss in zip(arm.num_trials, arm.losses, strict=True) if loss is None]
    for num in style.thinned(lost, lost)[0]:
        axes.plot(num, top, color=color, marker="x", markersize=5, clip_on=False)
    (line,) = axes.plot(
        *_corners(arm), color=color, linewidth=1.8, drawstyle="steps-post", label=arm.parameterization, zorder=3
    )
    return line


def _corners(arm: ArmTrace) -> tuple[list[int], list[float]]:
    """Return where the best so far changes, and its end."""
    x: list[int] = []
    y: list[float] = []
    for num, best in zip(arm.num_trials, arm.best, strict=True):
        if best is not None and (not y or best < y[-1]):
            x.append(num)
            y.append(best)
    return (x, y) if not x else ([*x, arm.num_trials[-1]], [*y, y[-1]])
