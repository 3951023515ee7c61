"""A page of panels, which every figure of a check is, and the one drawing of them all. It needs no window.

What is exactly zero has no place on a log axis, and no line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport

MISS, GRAY = "#c1121f", "0.45"
UPDATES = "updates"
MIN_SPAN = 1.0  # of an exponent, so that noise of a few hundredths looks flat
MARGIN = 0.15
BEYOND = 0.3  # steps by which the line of a prediction is longer than its range
Guides = tuple[tuple[tuple[float, float], tuple[float, float]], ...]  # ((from x, to x), (from y, to y)) of each
# The line of a prediction, on top of what was measured.
PREDICTED: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 3)), "linewidth": 0.9, "zorder": 5}
CROSS: dict[str, Any] = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8, "color": MISS, "zorder": 6}
# Of viridis, from the smallest scale to the largest: darker is wider.
_LIGHTEST, _DARKEST = 0.85, 0.1


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a panel. It has a band, errors or crosses where these are not empty."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    color: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    crosses: tuple[float, ...] = ()  # the x of what misses
    look: Mapping[str, Any] = field(default_factory=dict)  # as matplotlib names it
    predicted: tuple[float | None, ...] = ()  # at each x
    least: tuple[float | None, ...] = ()  # the lower end at each x, where an interval is predicted


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines on two axes. `guides` are what is predicted."""

    title: str
    lines: tuple[Line, ...] = ()
    guides: Guides = ()
    title_look: Mapping[str, Any] = field(default_factory=lambda: {"fontsize": 9})
    x_label: str = ""
    y_label: str = ""
    label_size: int = 8  # of y
    finish: Callable[[Axes, Panel], None] = lambda axes, panel: None


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a figure shows, row by row. Each row has at most `columns` panels."""

    title: str
    rows: tuple[tuple[Panel, ...], ...]
    columns: int
    inches: tuple[float, float]  # of a panel
    spare: tuple[float, float]  # inches beside and below the panels
    legend: tuple[Line2D, ...]
    legend_look: Mapping[str, Any] = field(default_factory=dict)
    title_size: int = 12
    shared: bool = False  # all panels have the same axes
    band: float = 0.1  # how opaque bands are
    guide: Mapping[str, Any] = field(default_factory=lambda: PREDICTED)

    @property
    def panels(self) -> dict[str, Panel]:
        """The panels by title; of equal titles the last one."""
        return {panel.title: panel for row in self.rows for panel in row}


def draw(page: Page) -> Figure:
    """Return the figure of a page."""
    rows = page.rows or ((),)
    size = (page.inches[0] * page.columns + page.spare[0], page.inches[1] * len(rows) + page.spare[1])
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(page.title, fontsize=page.title_size, fontweight="bold")
    grid = figure.subplots(len(rows), page.columns, squeeze=False, sharex=page.shared, sharey=page.shared)
    for axes_row, row in zip(grid, rows, strict=True):
        for axes in axes_row[len(row) :]:
            axes.remove()
        for axes, panel in zip(axes_row, row, strict=False):
            _draw_panel(axes, panel, page)
    if page.legend:
        look = {"ncols": len(page.legend), "frameon": False, "fontsize": 8, "title_fontsize": 8, **page.legend_look}
        figure.legend(handles=list(page.legend), loc="outside lower center", **look)
    return figure


def _draw_panel(axes: Axes, panel: Panel, page: Page) -> None:
    axes.set_title(panel.title, **panel.title_look)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7, which="both")
    if panel.x_label:
        axes.set_xlabel(panel.x_label, fontsize=8)
        axes.tick_params(labelbottom=True)
    if panel.y_label:
        axes.set_ylabel(panel.y_label, fontsize=panel.label_size)
    for line in panel.lines:
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=line.color, alpha=page.band, linewidth=0)
        look = {"color": line.color, "marker": "o", "markersize": 3, "linewidth": 1.3, **line.look}
        if line.errors:
            axes.errorbar(line.x, line.y, line.errors, **look)
        else:
            axes.plot(line.x, line.y, label=line.label, **look)
        for x, y in zip(line.x, line.y, strict=True):
            if x in line.crosses:
                axes.plot(x, y, **CROSS)
    for guide in panel.guides:
        axes.plot(*guide, **page.guide)
    panel.finish(axes, panel)


def keys(colors: Mapping[str, str]) -> list[Line2D]:
    """Return the entries of a legend: label -> color."""
    return [Line2D([], [], color=color, marker="o", markersize=3, label=label) for label, color in colors.items()]


def scale_colors(scales: Sequence[float]) -> dict[float, str]:
    """Return scale -> color, from light to dark."""
    ordered = sorted(scales)
    step = (_DARKEST - _LIGHTEST) / max(len(ordered) - 1, 1)
    return {scale: to_hex(matplotlib.colormaps["viridis"](_LIGHTEST + step * i)) for i, scale in enumerate(ordered)}


def step_colors(steps: Sequence[int]) -> dict[int, str]:
    """Return step -> color, from light to dark: another ramp than that of the scales."""
    last = max(len(steps) - 1, 1)
    return {step: to_hex(matplotlib.colormaps["plasma"](0.85 - 0.85 * i / last)) for i, step in enumerate(steps)}


def whole_numbers(axes: Axes) -> None:
    """Give x ticks at whole numbers alone."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def log_sizes(axes: Axes, panel: Panel, min_ratio: float) -> None:
    """Make y a log axis of sizes > 0 with plain numbers, whose limits are at least `min_ratio` apart."""
    axes.set_yscale("log")
    found = [y for line in panel.lines for y in line.y] or [1.0]
    ratio = max(found) / min(found)
    spare = math.sqrt(max(min_ratio / ratio, 1.0)) * 1.15
    axes.set_ylim(min(found) / spare, max(found) * spare)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def verdict_title(report: CheckReport, axis: AxisReport) -> str:
    """Return what the figures of an axis say above all panels."""
    verdict = axis.answer
    if axis.limit is not None and axis.limit.missed:
        verdict = "FAILED, the losses miss their limit"
    elif verdict == "FAILED" and axis.follows:
        verdict = "FAILED, features do not keep their size"
    if not any(axis.count(each) for each in ("ok", "miss", "unclear")):
        return f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict}"
    counts = f"{axis.count('ok')} ok, {axis.count('miss')} missed, {axis.count('unclear')} unclear"
    return f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict} ({counts})"


def has_slope(fit: Fit) -> bool:
    """Return whether a slope and its interval are known."""
    return fit.slope is not None and fit.low is not None and fit.high is not None


def slopes_of(label: str, color: str, fits: Sequence[Fit], **more: Any) -> Line:
    """Return the slopes of a quantity over the steps."""
    names = {"x": "step", "y": "slope", **{name: name for name in ("low", "high", "predicted", "least")}}
    shown = {name: tuple(getattr(fit, of) for fit in fits) for name, of in names.items()}
    return Line(**{"label": label, "color": color, **shown, **more})


def span_of(heights: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis of exponents."""
    spare = max(0.0, MIN_SPAN - (max(heights) - min(heights))) / 2 + MARGIN
    return min(heights) - spare, max(heights) + spare


def guides_of(lines: Sequence[Line], beyond: float) -> Guides:
    """Return a line for every exponent or end of an interval that is predicted in a panel, over its steps."""
    steps: dict[float, list[float]] = {}
    for line in lines:
        for heights in (line.predicted, line.least):
            for step, height in zip(line.x, heights, strict=True):
                if height is not None:
                    steps.setdefault(height, []).append(step)
    return tuple(((min(at) - beyond, max(at) + beyond), (y, y)) for y, at in sorted(steps.items()))
