"""The figure of a check: one panel per role, with the measured slope of every quantity over the steps.

Predicted slopes are dashed. `check_info` decides everything that is shown and is pure; `draw_check` only draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.style import GRAY, MISS, verdict_title

PANEL_INCHES = (3.1, 2.3)
COLUMNS = 5
# The palettes of Okabe and Ito, and of Tol, which color-blind readers can distinguish. Quantities without prediction
# are drawn thin.
COLORS = {
    "activation": "#0072b2",
    "change": "#000000",
    "effective": "#d55e00",
    "propagating": "#009e73",
    "aggregate init": "#56b4e9",
    "aggregate effective": "#e69f00",
    "aggregate propagating": "#8fce00",
    "gradient": "#cc79a7",
    "gradient / eps": "#999933",
    "weight change": "#882255",
    "decay": "#44aa99",
}
OTHER = "0.3"
MARGIN = 0.15
BEYOND = 0.3  # steps by which the line of a prediction is longer than its range
MIN_SPAN = 1.0  # of an exponent, so that noise of a few hundredths looks flat


@dataclass(frozen=True, kw_only=True)
class Series:
    """A quantity over the steps at which it has a slope."""

    quantity: str
    steps: tuple[int, ...]
    slopes: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    predicted: tuple[float | None, ...]
    missed: tuple[int, ...]  # steps


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The quantities of a role."""

    role: str
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class CheckInfo:
    """All that the figure of an axis shows."""

    title: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    y_low: float
    y_high: float


def check_info(report: CheckReport, axis: AxisReport) -> CheckInfo:
    """Return what the figure of an axis of a report shows."""
    order = {(judged.role, judged.quantity): index for index, judged in enumerate(axis.judged)}
    fits = sorted(
        (fit for fit in axis.shown if fit.layer is None),
        key=lambda fit: (order[fit.role, fit.quantity], fit.step),
    )
    panels = []
    for role, of_role in groupby(fits, key=lambda fit: fit.role):
        found = [_series(name, list(group)) for name, group in groupby(of_role, key=lambda fit: fit.quantity)]
        panels.append(Panel(role=role, series=tuple(series for series in found if series.steps)))
    every = [series for panel in panels for series in panel.series]
    known = [height for series in every for height in series.predicted if height is not None]
    heights = [*(height for series in every for height in series.slopes), *known] or [0.0]
    low, high = min(heights), max(heights)
    spare = max(0.0, MIN_SPAN - (high - low)) / 2
    return CheckInfo(
        title=verdict_title(report, axis),
        x_label="updates",
        y_label=f"exponent of {axis.scale_name}",
        panels=tuple(panel for panel in panels if panel.series),
        y_low=low - spare - MARGIN,
        y_high=high + spare + MARGIN,
    )


def draw_check(info: CheckInfo) -> Figure:
    """Return the figure. It needs no window and no global state."""
    columns = min(COLUMNS, max(len(info.panels), 1))
    rows = -(-max(len(info.panels), 1) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 1.1), layout="constrained")
    figure.suptitle(info.title, fontsize=12, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for index, axes in enumerate(grid):
        if index >= len(info.panels):
            axes.remove()
            continue
        _draw_panel(axes, info, info.panels[index])
        if index % columns == 0:
            axes.set_ylabel(info.y_label, fontsize=8)
        if index + columns >= len(info.panels):
            axes.set_xlabel(info.x_label, fontsize=8)
            axes.tick_params(labelbottom=True)
    if info.panels:
        handles = _handles(info)
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _series(quantity: str, fits: list[Fit]) -> Series:
    shown = [
        (fit, fit.slope, fit.low, fit.high)
        for fit in fits
        if fit.slope is not None and fit.low is not None and fit.high is not None
    ]
    return Series(
        quantity=quantity,
        steps=tuple(fit.step for fit, *_ in shown),
        slopes=tuple(slope for _, slope, _, _ in shown),
        low=tuple(low for _, _, low, _ in shown),
        high=tuple(high for _, _, _, high in shown),
        predicted=tuple(fit.predicted for fit, *_ in shown),
        missed=tuple(fit.step for fit, *_ in shown if fit.verdict == "miss"),
    )


def _draw_panel(axes: Axes, info: CheckInfo, panel: Panel) -> None:
    axes.set_title(panel.role, fontsize=9)
    axes.set_ylim(info.y_low, info.y_high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    for series in panel.series:
        color = COLORS.get(series.quantity, OTHER)
        known = series.predicted[-1] is not None
        axes.fill_between(series.steps, series.low, series.high, color=color, alpha=0.12 if known else 0.0, linewidth=0)
        wide, size = (1.5, 3.0) if known else (0.7, 1.5)
        axes.plot(series.steps, series.slopes, color=color, linewidth=wide, marker="o", markersize=size)
        for step, height in zip(series.steps, series.slopes, strict=True):
            if step in series.missed:
                axes.plot(step, height, marker="x", markersize=7, markeredgewidth=1.8, color=MISS, zorder=6)
    for height, first, last in _predicted(panel):
        axes.plot(
            [first - BEYOND, last + BEYOND], [height, height], color=GRAY, linestyle="--", linewidth=1.1, zorder=1
        )


def _predicted(panel: Panel) -> list[tuple[float, int, int]]:
    """Return (exponent, first step, last step) of every prediction in a panel."""
    steps: dict[float, list[int]] = {}
    for series in panel.series:
        for step, height in zip(series.steps, series.predicted, strict=True):
            if height is not None:
                steps.setdefault(height, []).append(step)
    return [(height, min(found), max(found)) for height, found in sorted(steps.items())]


def _handles(info: CheckInfo) -> list[Line2D]:
    shown = {series.quantity for panel in info.panels for series in panel.series}
    names = [name for name in COLORS if name in shown] + (["other"] if shown.difference(COLORS) else [])
    out = [Line2D([], [], color=COLORS.get(name, OTHER), marker="o", markersize=3, label=name) for name in names]
    out.append(Line2D([], [], color=GRAY, linestyle="--", label="predicted"))
    if any(series.predicted[-1] is None for panel in info.panels for series in panel.series):
        out.append(Line2D([], [], color=GRAY, linewidth=0.7, label="no prediction (thin)"))
    if any(series.missed for panel in info.panels for series in panel.series):
        out.append(Line2D([], [], color=MISS, marker="x", linestyle="none", label="miss"))
    return out
