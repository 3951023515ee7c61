"""Regret against scale: what the HP transferred from the base costs at each shape, beside the limit of the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from hpxfer.analysis import Finding, TransferReport
from hpxfer.analysis.thresholds import CONTROL, REGRET_SHARE
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.figures.text import along, listed

# The y-axis is linear up to this many nats and logarithmic above. Seed noise has been larger in every sweep so far.
LINEAR = 0.001
DECADES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class RegretPoint:
    """The regret at one scale. `nats` is None where the transferred HP diverged or was not measured."""

    scale: float
    is_base: bool
    nats: float | None
    se_nats: float | None
    percent: float | None
    diverged: bool
    limit_nats: float | None  # the largest regret that counts as none: a fraction of the loss


@dataclass(frozen=True, kw_only=True)
class RegretLine:
    """One parameterization, by scale.

    `share_of_gain` is the growth of the regret per doubling, as a fraction of the gain in loss.
    """

    parameterization: str
    base_value: float
    points: tuple[RegretPoint, ...]
    share_of_gain: float | None


@dataclass(frozen=True, kw_only=True)
class RegretInfo:
    """The regrets of one HP along one axis."""

    title: str
    caption: str
    hp: str
    axis: str
    scale_name: str
    lines: tuple[RegretLine, ...]

    @property
    def points(self) -> list[RegretPoint]:
        """The points of all lines."""
        return [point for line in self.lines for point in line.points]

    def table(self) -> pd.DataFrame:
        """Return one row per regret."""
        rows = [
            (self.axis, line.parameterization, line.base_value, p.scale, p.nats, p.se_nats, p.percent, p.diverged)
            for line in self.lines
            for p in line.points
        ]
        columns = ["axis", "parameterization", f"transferred_{self.hp}", self.scale_name, "regret_nats", "se_nats"]
        return pd.DataFrame(rows, columns=[*columns, "percent_of_loss", "diverged"])


def regret_info(report: TransferReport, axis: str) -> RegretInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis)
    lines = tuple(line for finding in findings if (line := _line(finding)) is not None)
    if all(shape.is_base for finding in findings for shape in finding.shapes):
        return f"no shape along {axis} beyond the base"
    if not any(point.nats is not None or point.diverged for line in lines for point in line.points):
        return f"no shape along {axis} has a result at a transferred {report.hp}"
    growths = [
        f"With {line.parameterization}, the regret grows per doubling by {line.share_of_gain:.0%} of the gain in loss."
        for line in lines
        if line.share_of_gain is not None and line.share_of_gain > 0
    ]
    caption = "Loss at the base's best HP minus the best loss of the shape, with two standard errors."
    largest = listed([_largest(line) for line in lines])
    return RegretInfo(
        title=f"Regret of the {report.hp} tuned at the base, along {axis}: {largest}",
        caption=" ".join([caption, *growths]),
        hp=report.hp,
        axis=axis,
        scale_name=findings[0].scale_name,
        lines=lines,
    )


def _line(finding: Finding) -> RegretLine | None:
    if finding.base_value is None:
        return None
    trend = finding.regret_trend
    return RegretLine(
        parameterization=finding.parameterization,
        base_value=finding.base_value,
        points=tuple(
            RegretPoint(
                scale=shape.scale,
                is_base=shape.is_base,
                nats=_finite(shape.regret_nats),
                se_nats=shape.regret_se_nats,
                percent=_finite(shape.regret_percent),
                diverged=shape.regret_nats == math.inf,
                limit_nats=None if shape.best_loss is None else REGRET_SHARE * shape.best_loss,
            )
            for shape in finding.shapes
        ),
        share_of_gain=None if trend is None else trend.share_of_gain,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _largest(line: RegretLine) -> str:
    if any(point.diverged for point in line.points):
        return f"{line.parameterization} diverges"
    known = [point.nats for point in line.points if point.nats is not None and not point.is_base]
    if not known:
        return f"{line.parameterization} unknown"
    return f"{line.parameterization} " + (f"up to {max(known):.2g} nats" if max(known) > 0 else "0")


def draw_regret(info: RegretInfo) -> Figure:
    """Return the figure. Its y-axis is linear near zero and logarithmic above."""
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=3.2)
        style.log2_scale_axis(axes, [point.scale for point in info.points], info.scale_name)
        known = [(point.nats, point.se_nats or 0.0) for point in info.points if point.nats is not None]
        limits = [point.limit_nats for point in info.points if point.limit_nats is not None]
        top = 1.6 * max([*(nats + 2 * se for nats, se in known), *limits, LINEAR])
        bottom = min((nats for nats, _ in known), default=0.0)
        diverged = any(point.diverged for point in info.points)
        _regret_axis(axes, min(1.6 * bottom, -LINEAR / 3), top, strip=diverged)
        look_of = style.marks([line.parameterization for line in info.lines], CONTROL)
        for line in info.lines:
            color, marker = look_of[line.parameterization]
            _draw_line(axes, line, color, marker, top)
        _draw_limit(axes, info)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _regret_axis(axes: Axes, bottom: float, top: float, *, strip: bool) -> None:
    """Set the y-axis. A regret is below zero where the transferred HP happened to have the luckier seeds."""
    axes.set_yscale("symlog", linthresh=LINEAR, linscale=0.5)
    axes.set_ylim(bottom, top * (1.8 if strip else 1.0))
    ticks = [tick for decade in DECADES for tick in {decade, -decade} if bottom <= tick <= top]
    axes.yaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.set_ylabel("regret (nats)")
    if strip:
        axes.axhspan(top, top * 1.8, color=INK, alpha=0.06, linewidth=0)
        offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axes.annotate("diverged", (axes.get_xlim()[0], top * 1.33), **offset)  # type: ignore[arg-type]


def _draw_line(axes: Axes, line: RegretLine, color: str, marker: str, top: float) -> None:
    known = [(float(np.log2(p.scale)), p.nats, p.se_nats or 0.0) for p in line.points if p.nats is not None]
    x, y = ([row[i] for row in known] for i in range(2))
    axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.6, label=line.parameterization, zorder=3)
    for at, height, error in known:
        axes.plot([at, at], [max(height - 2 * error, min(height, 0.0)), height + 2 * error], color=color, linewidth=1.3)
    for point in line.points:
        if point.diverged:
            axes.plot(np.log2(point.scale), top * 1.33, marker="x", color=color, markersize=7, markeredgewidth=1.8)


def _draw_limit(axes: Axes, info: RegretInfo) -> None:
    limits: dict[float, float] = {}
    for point in info.points:
        if point.limit_nats is not None:
            limits[point.scale] = max(point.limit_nats, limits.get(point.scale, 0.0))
    if limits:
        x = [float(np.log2(scale)) for scale in sorted(limits)]
        y = [limits[scale] for scale in sorted(limits)]
        axes.plot(x, y, color=INK, alpha=FAINT, linestyle=":", linewidth=1.4, label=f"{REGRET_SHARE:.0%} of the loss")


REGRET = HPFigure(
    name="regret",
    question="What does the transferred HP cost at each scale?",
    infos=lambda given: {axis: regret_info(given.report, axis) for axis in given.axes},
    draw=draw_regret,
)
