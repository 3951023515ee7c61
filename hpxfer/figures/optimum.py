"""Optimum against scale: log2 of the best HP with its interval and the fitted drift, one color per parameterization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis import Drift, Finding, TransferReport
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, notes_on, octaves_of, staying, with_interval
from hpxfer.verdict.optimum import Kind, Optimum
from hpxfer.verdict.thresholds import CONTROL

BOUNDS: dict[Kind, int] = {"lower_edge": -1, "upper_edge": 1}  # on which side of the grid the optimum lies
ARROW = 20  # points
SPREAD = 0.05  # doublings between the points of two parameterizations at one scale
TINY = 1e-9
CAPTION = (
    "The best HP at each shape with its 95% interval. The dashed line is the fitted drift, and the band holds all "
    "slopes within its 95% interval. An arrow marks a bound: the optimum lies beyond the grid."
)


@dataclass(frozen=True, kw_only=True)
class OptimumLine:
    """One parameterization. The fitted line goes through `center`, which is (log2 scale, log2 HP)."""

    parameterization: str
    points: tuple[tuple[float, float, Optimum], ...]  # scale, log2 HP, and the optimum with its kind and interval
    drift: Drift | None
    is_line: bool  # whether a line describes how the optimum moves
    center: tuple[float, float] | None

    @property
    def slope(self) -> float | None:
        """The drift in octaves per doubling, or None if it is not known."""
        return self.drift.octaves_per_doubling if self.drift else None

    def fitted(self, log2_scale: float, slope: float) -> float:
        """Return log2 of the HP on the line through the center that has this slope."""
        assert self.center is not None, "a line without a fit is not drawn"
        return self.center[1] + slope * (log2_scale - self.center[0])


@dataclass(frozen=True, kw_only=True)
class OptimumInfo:
    """The optima of one HP along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    lines: tuple[OptimumLine, ...]
    caption: str
    control: str | None = CONTROL  # the arm that the others are compared with

    def table(self) -> pd.DataFrame:
        """Return one row per optimum, with the slope of its line."""
        rows = [
            (self.axis, line.parameterization, scale, at.kind, y, at.low_log2, at.high_log2, line.slope)
            for line in self.lines
            for scale, y, at in line.points
        ]
        columns = ["axis", "parameterization", self.scale_name, "kind", "log2_hp", "low_log2", "high_log2"]
        return pd.DataFrame(rows, columns=[*columns, "octaves_per_doubling"])


def optimum_info(report: TransferReport, axis: str) -> OptimumInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis, report.control)
    lines = tuple(_line(finding) for finding in findings)
    if not any(line.points for line in lines):
        return f"no shape along {axis} has an optimum of {report.hp}"
    drifts = [
        f"{line.parameterization} " + ("not a line" if not line.is_line else _drift(line.drift)) for line in lines
    ]
    return OptimumInfo(
        control=report.control,
        title=f"Drift of the best {report.hp} along {axis}, in octaves per doubling: {listed(drifts)}",
        hp=report.hp,
        axis=axis,
        scale_name=findings[0].scale_name,
        lines=lines,
        caption=" ".join([CAPTION, f"A flat line means that {staying(findings)}.", *notes_on(findings)]),
    )


def _drift(drift: Drift | None) -> str:
    if drift is None or (drift.bounds and drift.low is None and drift.high is None):
        return "unknown"
    return with_interval(drift.octaves_per_doubling, drift.low, drift.high)


def _line(finding: Finding) -> OptimumLine:
    points = tuple(
        (shape.scale, shape.optimum.log2_value, shape.optimum)
        for shape in finding.shapes
        if shape.optimum.log2_value is not None
    )
    known = [(np.log2(scale), y, at.se_log2) for scale, y, at in points if at.kind not in BOUNDS]
    center = None
    is_line = finding.drift is None or finding.drift.is_line
    if is_line and finding.drift is not None and known:
        exact = any(se is None for *_, se in known)
        weight = [1.0 if exact or se is None else max(se, TINY) ** -2 for *_, se in known]
        x, y = (float(np.average([row[i] for row in known], weights=weight)) for i in (0, 1))
        center = (x, y)
    return OptimumLine(
        parameterization=finding.parameterization,
        points=points,
        drift=finding.drift if is_line else None,
        is_line=is_line,
        center=center,
    )


def draw_optimum(info: OptimumInfo) -> Figure:
    """Return the figure."""
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=3.4)
        scales = [scale for line in info.lines for scale, *_ in line.points]
        style.log2_scale_axis(axes, scales, info.scale_name)
        axes.set_ylabel(octaves_of(f"of the best {info.hp}"))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        look_of = style.marks([line.parameterization for line in info.lines], info.control)
        handles = []
        for i, line in enumerate(info.lines):
            color, marker = look_of[line.parameterization]
            _draw_points(axes, line, color, marker, SPREAD * (i - (len(info.lines) - 1) / 2))
            _draw_fit(axes, line, color)
            handles.append(Line2D([], [], color=color, marker=marker, label=line.parameterization))
        if any(line.drift is not None for line in info.lines):
            handles.append(Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label="fitted drift"))
        _set_limits(axes, info)
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_points(axes: Axes, line: OptimumLine, color: str, marker: str, shift: float) -> None:
    for scale, y, optimum in line.points:
        x = np.log2(scale) + shift
        if (side := BOUNDS.get(optimum.kind)) is not None:
            arrow = {"arrowstyle": "<|-", "color": color, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x, y), xytext=(0, ARROW * side), textcoords="offset points", arrowprops=arrow)
            axes.plot(x, y, marker="_", color=color, markersize=9, markeredgewidth=2, linestyle="none", zorder=4)
            continue
        ends = [y if end is None else end for end in (optimum.low_log2, optimum.high_log2)]
        axes.plot([x, x], ends, color=color, linewidth=1.6, zorder=3)
        axes.plot(x, y, marker=marker, color=color, markersize=7, linestyle="none", zorder=4)


def _draw_fit(axes: Axes, line: OptimumLine, color: str) -> None:
    if line.drift is None or line.center is None:
        return
    x = np.linspace(*axes.get_xlim(), 25)
    slope, low, high = line.drift.octaves_per_doubling, line.drift.low, line.drift.high
    axes.plot(x, [line.fitted(at, slope) for at in x], color=color, linestyle="--", linewidth=1.3)
    if low is not None and high is not None:
        below, above = ([line.fitted(at, end) for at in x] for end in (low, high))
        axes.fill_between(x, below, above, color=color, alpha=0.1, linewidth=0)


def _set_limits(axes: Axes, info: OptimumInfo) -> None:
    """Show every optimum and at least two octaves, so that a drift of a few hundredths looks flat."""
    every = [(at.log2_value, at.low_log2, at.high_log2) for line in info.lines for _, _, at in line.points]
    heights = [y for ends in every for y in ends if y is not None]
    low, high = min(heights), max(heights)
    margin = max(0.0, 2.0 - (high - low)) / 2 + 0.4
    axes.set_ylim(low - margin, high + margin)


OPTIMUM = HPFigure(
    name="optimum",
    question="Where is the best HP at each scale, and how does it drift?",
    infos=lambda given: {axis: optimum_info(given.report, axis) for axis in given.axes},
    draw=draw_optimum,
    of_lines=True,
)
