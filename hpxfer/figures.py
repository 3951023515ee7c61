"""The transfer figure: loss against log2 HP, a panel a parameterization, a row an axis, a color a scale.

`transfer_info` decides everything that is shown and is pure; `draw_transfer` only draws it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis import Finding, TransferReport
from hpxfer.analysis.basin import Basin, basins
from hpxfer.analysis.optimum import Kind
from hpxfer.analysis.text import headline, loss_name
from hpxfer.errors import HpxferError
from hpxfer.files import write_files

PANEL_INCHES = (4.6, 3.4)
PNG_DPI = 150
# Of viridis, from the smallest scale to the largest: light to dark, without the yellow that white paper swallows.
COLORS = (0.86, 0.04)
GRAY = "0.4"
MARKERS: dict[Kind, str] = {
    "interior": "*",
    "at_divergence": "*",
    "lower_edge": "<",
    "upper_edge": ">",
}
# A row is shown up to the shallowest best loss plus this many times the typical rise within so many octaves of it.
HEADROOM = 1.4
OCTAVES_SHOWN = 2.0
# A regret may stretch the row up to this many typical rises; beyond, the basins would look flat.
MAX_STRETCH = 3.0
MIN_HEIGHT = 1e-3  # nats, of a row without any rise
X_MARGIN = 0.4  # octaves
TITLE_CHARACTERS = 58
MARGIN = 0.06  # of the height, below the lowest point
LANE = 0.05  # of the height, per shape: the strip on top for HPs that diverged


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An optimum: the point, whether it is an estimate or a bound, and its 95% interval (None: open on that side)."""

    x: float  # log2 HP
    y: float  # nats
    kind: Kind
    x_low: float | None
    x_high: float | None


@dataclass(frozen=True, kw_only=True)
class Series:
    """One shape's basin. `x` is log2 HP; `y_*` are nats over seeds. HPs that diverged stand in `censored` only."""

    name: str
    scale: float
    x: tuple[float, ...]
    y_median: tuple[float, ...]
    y_min: tuple[float, ...]
    y_max: tuple[float, ...]  # of the seeds that did not diverge
    censored: tuple[float, ...]
    optimum: Mark | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One parameterization along one axis. The limits are those of the whole row."""

    axis: str
    scale_name: str
    parameterization: str
    title: str
    series: tuple[Series, ...]  # by scale
    transferred_log2: float | None
    x_low: float
    x_high: float
    y_low: float
    y_top: float  # losses above are off scale
    y_high: float  # between y_top and here stand the HPs that diverged


@dataclass(frozen=True, kw_only=True)
class TransferInfo:
    """All that the figure shows. `panels` are ordered by row (axis) and column (parameterization)."""

    title: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]

    @property
    def rows(self) -> tuple[tuple[Panel, ...], ...]:
        """The panels, an axis a row."""
        return tuple(tuple(group) for _, group in groupby(self.panels, key=lambda panel: panel.axis))


def transfer_info(report: TransferReport, line: pd.DataFrame) -> TransferInfo:
    """Return what the figure of a report shows; `line` holds the rows that the report was made from."""
    series_of: dict[tuple[str, str], list[Series]] = {}
    finding_of = {(one.axis, one.parameterization): one for one in report.findings}
    for basin in basins(line):
        key = (basin.axis, basin.parameterization)
        series_of.setdefault(key, []).append(_series(basin, finding_of[key]))
    panels: list[Panel] = []
    for axis, group in groupby(report.findings, key=lambda finding: finding.axis):
        findings = tuple(group)
        row = _panels(findings, [tuple(series_of[axis, one.parameterization]) for one in findings])
        if len({one.axis for one in report.findings}) > 1:
            row = [replace(panel, title=f"{axis} | {panel.title}") for panel in row]
        panels += row
    return TransferInfo(
        title=f"{report.sweep}: does {report.hp} transfer?",
        x_label=f"log2 {report.hp}",
        y_label=f"{loss_name(report.loss)} (nats)",
        panels=tuple(panels),
    )


def draw_transfer(info: TransferInfo) -> Figure:
    """Return the figure. It belongs to no window and to no global state."""
    rows = info.rows
    columns = max((len(row) for row in rows), default=1)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns + 1.2, height * max(len(rows), 1) + 0.9), layout="constrained")
    grid = figure.subplots(max(len(rows), 1), columns, squeeze=False, sharey="row")
    figure.suptitle(info.title, fontsize=12, fontweight="bold")
    for axes_row, row in zip(grid, rows or ((),), strict=True):
        for axes in axes_row[len(row) :]:
            axes.remove()
        for axes, panel in zip(axes_row, row, strict=False):
            _draw_panel(axes, panel)
            axes.set_xlabel(info.x_label)
        if row:
            axes_row[0].set_ylabel(info.y_label)
            _scale_legend(axes_row[len(row) - 1], row)
    if handles := _mark_handles(info):
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 3 * columns), frameon=False, fontsize=8
        )
    return figure


def save_transfer(info: TransferInfo, folder: Path) -> list[Path]:
    """Return the paths of the PNG and SVG files written. Equal infos give equal bytes; no reader sees half a file."""
    figure = draw_transfer(info)
    paths = {kind: folder / f"transfer.{kind}" for kind in ("png", "svg")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files({path: partial(_save, figure, kind) for kind, path in paths.items()})
    except OSError as error:
        raise HpxferError(
            f"{folder}: the figure cannot be written: {error.strerror}; choose another folder with --output"
        ) from None
    return list(paths.values())


def _save(figure: Figure, kind: str, file: IO[bytes]) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "hpxfer"}):
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else {})


def _series(basin: Basin, finding: Finding) -> Series:
    shown = [point for point in basin.points if point.finite and not point.censored]
    x = tuple(point.log2 for point in shown)
    y_median = tuple(float(np.median(point.losses)) for point in shown)
    optimum = next(one for one in finding.shapes if (one.scale, one.shape) == (basin.scale, basin.shape)).optimum
    mark = None
    if optimum.log2_value is not None:
        mark = Mark(
            x=optimum.log2_value,
            y=float(np.interp(optimum.log2_value, x, y_median)),  # on the line drawn, where the eye expects it
            kind=optimum.kind,
            x_low=optimum.low_log2,
            x_high=optimum.high_log2,
        )
    return Series(
        name=f"{basin.scale:g}" + (" (base)" if basin.is_base else ""),
        scale=basin.scale,
        x=x,
        y_median=y_median,
        y_min=tuple(min(point.finite) for point in shown),
        y_max=tuple(max(point.finite) for point in shown),
        censored=tuple(point.log2 for point in basin.points if point.censored),
        optimum=mark,
    )


def _panels(findings: Sequence[Finding], series: Sequence[tuple[Series, ...]]) -> list[Panel]:
    """Return the panels of one row: the findings of one axis."""
    every = [one for column in series for one in column]
    xs = [x for one in every for x in (*one.x, *one.censored)] or [0.0]
    regrets = [shape.regret_nats for finding in findings for shape in finding.shapes]
    y_low, y_top = _y_limits(every, [one for one in regrets if one is not None and math.isfinite(one)])
    num_lanes = max((len(column) for column in series if any(one.censored for one in column)), default=0)
    return [
        Panel(
            axis=finding.axis,
            scale_name=finding.scale_name,
            parameterization=finding.parameterization,
            title=headline(finding),
            series=column,
            transferred_log2=None if finding.base_value is None else math.log2(finding.base_value),
            x_low=min(xs) - X_MARGIN,
            x_high=max(xs) + X_MARGIN,
            y_low=y_low,
            y_top=y_top,
            y_high=y_top + num_lanes * LANE * (y_top - y_low),
        )
        for finding, column in zip(findings, series, strict=True)
    ]


def _y_limits(every: Sequence[Series], regrets: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and highest loss of a row that are shown, such that basins and regrets can be seen."""
    rises, bests = [], []
    for one in every:
        if not one.x:
            continue
        best, center = min(zip(one.y_median, one.x, strict=True))
        near = [y for x, y in zip(one.x, one.y_median, strict=True) if abs(x - center) <= OCTAVES_SHOWN]
        bests.append(best)
        rises.append(max(near) - best)
    if not bests:
        return 0.0, 1.0
    rise = float(np.median(rises))
    height = max(rise, min(max(regrets, default=0.0), MAX_STRETCH * rise)) or MIN_HEIGHT
    low, top = min(min(one.y_min) for one in every if one.x), max(bests) + HEADROOM * height
    low = max(low, min(bests) - height)  # one stray seed far below does not flatten the row
    return low - MARGIN * (top - low), top


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title("\n".join(textwrap.wrap(panel.title, TITLE_CHARACTERS)), fontsize=10)
    axes.set_xlim(panel.x_low, panel.x_high)
    axes.set_ylim(panel.y_low, panel.y_high)
    ticks = MaxNLocator(6).tick_values(panel.y_low, panel.y_top)
    axes.set_yticks([tick for tick in ticks if panel.y_low <= tick <= panel.y_top])  # the strip has no scale
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.y_high > panel.y_top:  # the strip hides lines that run off scale behind it
        axes.axhspan(panel.y_top, panel.y_high, color="#f2f2f2", linewidth=0, zorder=4)
        middle = (panel.y_top + panel.y_high) / 2
        axes.text(panel.x_low + X_MARGIN / 4, middle, "diverged", color=GRAY, fontsize=8, va="center", zorder=5)
    if panel.transferred_log2 is not None:
        axes.axvline(panel.transferred_log2, color=GRAY, linestyle=":", linewidth=1.3, zorder=4.5)
    lane = (panel.y_high - panel.y_top) / max(len(panel.series), 1)
    for i, (one, color) in enumerate(zip(panel.series, _colors(len(panel.series)), strict=True)):
        axes.fill_between(one.x, one.y_min, one.y_max, color=color, alpha=0.18, linewidth=0)
        axes.plot(one.x, one.y_median, color=color, linewidth=1.6, marker="o", markersize=3.2, zorder=3)
        off = [x for x, y in zip(one.x, one.y_median, strict=True) if y > panel.y_top]
        for x in off:
            _draw_symbol(axes, x, panel.y_top, "^", color)
        for x in one.censored:
            _draw_symbol(axes, x, panel.y_top + (i + 0.5) * lane, "x", color)
        if one.optimum is not None:
            _draw_mark(axes, one.optimum, color)


def _draw_symbol(axes: Axes, x: float, y: float, marker: str, color: str) -> None:
    axes.plot(x, y, marker=marker, markersize=5, color=color, linestyle="none", zorder=5, clip_on=False)


def _draw_mark(axes: Axes, mark: Mark, color: str) -> None:
    if mark.x_low is not None or mark.x_high is not None:
        ends = [
            edge if end is None else end for end, edge in zip((mark.x_low, mark.x_high), axes.get_xlim(), strict=True)
        ]
        axes.plot(ends, [mark.y, mark.y], color="black", linewidth=1.2, zorder=5.5)
    size = 13 if MARKERS[mark.kind] == "*" else 9
    axes.plot(
        mark.x,
        mark.y,
        marker=MARKERS[mark.kind],
        markersize=size,
        color=color,
        markeredgecolor="black",
        markeredgewidth=0.8,
        linestyle="none",
        zorder=6,
    )


def _colors(num: int) -> list[str]:
    """Return one color a shape, by rank: scales are mostly powers of two."""
    start, end = COLORS
    viridis = matplotlib.colormaps["viridis"]
    return [to_hex(viridis(start + (end - start) * i / max(num - 1, 1))) for i in range(num)]


def _scale_legend(axes: Axes, row: Sequence[Panel]) -> None:
    """Add the legend of scales to the right of a row."""
    series = max((panel.series for panel in row), key=len)
    handles = [
        Line2D([], [], color=color, marker="o", markersize=4, label=one.name)
        for one, color in zip(series, _colors(len(series)), strict=True)
    ]
    axes.legend(
        handles=handles,
        title=row[0].scale_name,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        alignment="left",
        frameon=False,
        fontsize=9,
    )


def _mark_handles(info: TransferInfo) -> list[Artist]:
    """Return the legend of the marks that appear in the figure."""
    series = [(panel, one) for panel in info.panels for one in panel.series]
    kinds = {one.optimum.kind for _, one in series if one.optimum}
    out: list[Artist] = []
    if kinds & {"interior", "at_divergence"}:
        out.append(_key("*", "optimum (bar: 95% interval)", 12, edge="black"))
    if kinds & {"lower_edge", "upper_edge"}:
        out.append(_key(">", "at the grid's edge: optimum beyond", 8, edge="black"))
    if any(panel.transferred_log2 is not None for panel in info.panels):
        out.append(Line2D([], [], color=GRAY, linestyle=":", linewidth=1.3, label="best at the base, transferred"))
    if any(one.y_min != one.y_max for _, one in series):
        out.append(Patch(color=GRAY, alpha=0.3, linewidth=0, label="range of seeds"))
    if any(one.censored for _, one in series):
        out.append(_key("x", "diverged", 6))
    if any(y > panel.y_top for panel, one in series for y in one.y_median):
        out.append(_key("^", "off scale", 6))
    return out


def _key(marker: str, label: str, size: float, edge: str = GRAY) -> Line2D:
    """Return a legend entry for a mark, in gray: color is for scales."""
    return Line2D(
        [], [], linestyle="none", color=GRAY, marker=marker, markersize=size, markeredgecolor=edge, label=label
    )
