"""The figure of a check: a panel a role, the measured slope of every quantity over the steps, the predicted one dashed.

`check_info` decides everything that is shown and is pure; `draw_check` only draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.errors import HpxferError
from hpxfer.host.files import write_files

PANEL_INCHES = (3.1, 2.3)
COLUMNS = 5
PNG_DPI = 130
MISS, GRAY = "#c1121f", "0.45"
# Okabe and Ito's, told apart by the color-blind; what has no prediction is drawn thin.
COLORS = {
    "activation": "#0072b2",
    "change": "#000000",
    "effective": "#d55e00",
    "propagating": "#009e73",
    "aggregate init": "#56b4e9",
    "aggregate effective": "#e69f00",
    "aggregate propagating": "#8fce00",
    "gradient": "#cc79a7",
}
OTHER = "0.3"
MARGIN = 0.15
BEYOND = 0.3  # steps that a prediction's line is longer than what it is about
MIN_SPAN = 1.0  # of an exponent: noise of a few hundredths looks flat


@dataclass(frozen=True, kw_only=True)
class Series:
    """One quantity over the steps at which it has a slope."""

    quantity: str
    steps: tuple[int, ...]
    slopes: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    predicted: tuple[float | None, ...]
    missed: tuple[int, ...]  # steps


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One role. The limits are those of the figure."""

    role: str
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class CheckInfo:
    """All that the figure of one axis shows."""

    title: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    y_low: float
    y_high: float


def check_info(report: CheckReport, axis: AxisReport) -> CheckInfo:
    """Return what the figure of one axis of a report shows."""
    order = {(one.role, one.quantity): place for place, one in enumerate(axis.judged)}
    lines = sorted(
        (line for line in axis.fits if line.layer is None),
        key=lambda line: (order[line.role, line.quantity], line.step),
    )
    panels = []
    for role, of_role in groupby(lines, key=lambda line: line.role):
        found = [_series(name, list(group)) for name, group in groupby(of_role, key=lambda line: line.quantity)]
        panels.append(Panel(role=role, series=tuple(one for one in found if one.steps)))
    series = [one for panel in panels for one in panel.series]
    known = [height for one in series for height in one.predicted if height is not None]
    heights = [*(height for one in series for height in one.slopes), *known] or [0.0]
    low, high = min(heights), max(heights)
    spare = max(0.0, MIN_SPAN - (high - low)) / 2
    verdict = "passed" if axis.passed else "FAILED"
    counts = f"{axis.count('ok')} ok, {axis.count('miss')} missed, {axis.count('unclear')} unclear"
    return CheckInfo(
        title=f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict} ({counts})",
        x_label="updates",
        y_label=f"exponent of {axis.scale_name}",
        panels=tuple(panel for panel in panels if panel.series),
        y_low=low - spare - MARGIN,
        y_high=high + spare + MARGIN,
    )


def draw_check(info: CheckInfo) -> Figure:
    """Return the figure. It belongs to no window and to no global state."""
    columns = min(COLUMNS, max(len(info.panels), 1))
    rows = -(-max(len(info.panels), 1) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 1.1), layout="constrained")
    figure.suptitle(info.title, fontsize=12, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for place, axes in enumerate(grid):
        if place >= len(info.panels):
            axes.remove()
            continue
        _draw_panel(axes, info, info.panels[place])
        if place % columns == 0:
            axes.set_ylabel(info.y_label, fontsize=8)
        if place + columns >= len(info.panels):
            axes.set_xlabel(info.x_label, fontsize=8)
            axes.tick_params(labelbottom=True)
    if info.panels:
        handles = _handles(info)
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def save_check(report: CheckReport, folder: Path) -> list[Path]:
    """Return the paths of the figures written, PNG and SVG for every axis. Equal reports give equal bytes."""
    writers = {}
    for axis in report.axes:
        figure = draw_check(check_info(report, axis))
        for kind in ("png", "svg"):
            writers[folder / f"check-{axis.axis}.{kind}"] = partial(_save, figure, kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(writers)
    except OSError as error:
        raise HpxferError(
            f"{folder}: the figure cannot be written: {error.strerror}; choose another folder with --output"
        ) from None
    return list(writers)


def _save(figure: Figure, kind: str, file: IO[bytes]) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "hpxfer"}):
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else {})


def _series(quantity: str, lines: list[Fit]) -> Series:
    shown = [
        (line, line.slope, line.low, line.high)
        for line in lines
        if line.slope is not None and line.low is not None and line.high is not None
    ]
    return Series(
        quantity=quantity,
        steps=tuple(line.step for line, *_ in shown),
        slopes=tuple(slope for _, slope, _, _ in shown),
        low=tuple(low for _, _, low, _ in shown),
        high=tuple(high for _, _, _, high in shown),
        predicted=tuple(line.predicted for line, *_ in shown),
        missed=tuple(line.step for line, *_ in shown if line.verdict == "miss"),
    )


def _draw_panel(axes: Axes, info: CheckInfo, panel: Panel) -> None:
    axes.set_title(panel.role, fontsize=9)
    axes.set_ylim(info.y_low, info.y_high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    for one in panel.series:
        color = COLORS.get(one.quantity, OTHER)
        known = one.predicted[-1] is not None
        axes.fill_between(one.steps, one.low, one.high, color=color, alpha=0.12 if known else 0.0, linewidth=0)
        wide, size = (1.5, 3.0) if known else (0.7, 1.5)
        axes.plot(one.steps, one.slopes, color=color, linewidth=wide, marker="o", markersize=size)
        for step, height in zip(one.steps, one.slopes, strict=True):
            if step in one.missed:
                axes.plot(step, height, marker="x", markersize=7, markeredgewidth=1.8, color=MISS, zorder=6)
    for height, first, last in _predicted(panel):
        axes.plot(
            [first - BEYOND, last + BEYOND], [height, height], color=GRAY, linestyle="--", linewidth=1.1, zorder=1
        )


def _predicted(panel: Panel) -> list[tuple[float, int, int]]:
    """Return (exponent, first step, last step) of what is predicted in a panel."""
    steps: dict[float, list[int]] = {}
    for one in panel.series:
        for step, height in zip(one.steps, one.predicted, strict=True):
            if height is not None:
                steps.setdefault(height, []).append(step)
    return [(height, min(found), max(found)) for height, found in sorted(steps.items())]


def _handles(info: CheckInfo) -> list[Line2D]:
    shown = {one.quantity for panel in info.panels for one in panel.series}
    names = [name for name in COLORS if name in shown] + (["other"] if shown.difference(COLORS) else [])
    out = [Line2D([], [], color=COLORS.get(name, OTHER), marker="o", markersize=3, label=name) for name in names]
    out.append(Line2D([], [], color=GRAY, linestyle="--", label="predicted"))
    if any(one.predicted[-1] is None for panel in info.panels for one in panel.series):
        out.append(Line2D([], [], color=GRAY, linewidth=0.7, label="no prediction (thin)"))
    if any(one.missed for panel in info.panels for one in panel.series):
        out.append(Line2D([], [], color=MISS, marker="x", linestyle="none", label="miss"))
    return out
