"""Optimum against scale, and regret against scale: one color per parameterization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis import Drift, Finding, ShapeFinding, TransferReport
from hpxfer.figures import style
from hpxfer.figures.broken_axis import BrokenAxis, broken_axis, draw_broken_axis
from hpxfer.figures.chart import Block, Chart, draw, key
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, notes_on, octaves_of, staying, with_interval
from hpxfer.verdict import Kind, Optimum
from hpxfer.verdict.thresholds import NUM_SE, REGRET_SHARE


def regret_block(report: TransferReport, axis: str) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis, report.control)
    known = [finding for finding in findings if finding.base_value is not None]
    if all(shape.is_base for finding in findings for shape in finding.shapes):
        return f"no shape along {axis} beyond the base"
    if all(shape.regret_nats is None for finding in known for shape in finding.shapes):
        return f"no shape along {axis} has a result at a transferred {report.hp}"
    growths = [
        f"With {finding.parameterization}, the loss given up grows per doubling by "
        f"{trend.share_of_gain:.0%} of what the doubling gains."
        for finding in known
        if (trend := finding.regret_trend) is not None and trend.share_of_gain is not None and trend.share_of_gain > 0
    ]
    caption = (
        "Loss at the HP transferred from the base minus the best one of the shape. The bar is "
        "the 95% interval. Below the break of the axis nothing was measured; at the base, both are the same grid cell."
    )
    largest = listed([f"{finding.parameterization} {_largest(finding)}" for finding in known])
    rows = [
        (
            *(axis, finding.parameterization, finding.base_value, shape.scale, _finite(shape.regret_nats)),
            *(shape.regret_se_nats, *(_interval(shape) or (None, None)), _finite(shape.regret_percent)),
            *(shape.regret_octave_share, _limit(shape), _diverges(shape)),
        )
        for finding in known
        for shape in finding.shapes
    ]
    columns = ["axis", "parameterization", f"transferred_{report.hp}", findings[0].scale_name, "regret_nats", "se_nats"]
    columns += ["low_nats", "high_nats", "percent_of_loss", "share_of_octave_cost", "limit_nats", "diverged"]
    looks = style.marks([finding.parameterization for finding in known], report.control)
    has_limit = any(_limit(shape) is not None for finding in known for shape in finding.shapes)
    chart = Chart(
        x=findings[0].scale_name,
        lines=(),
        color="arm",
        looks=looks,
        legend="right",
        keys=(key("limit of the verdict", linestyle=":"),) if has_limit else (),
        finish=lambda axes, *_: _draw_regrets(axes, known, looks, report.judged.unit),
    )
    return Block(
        title=f"Loss given up by the {report.hp} tuned at the base, along {axis}: {largest}",
        caption=" ".join([caption, *growths]),
        frame=pd.DataFrame(rows, columns=columns),
        drawn=pd.DataFrame({"arm": list(looks)}),
        charts=(chart,),
        judged=report.judged,
        height=3.4,
        foot=0.5,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _diverges(shape: ShapeFinding) -> bool:
    return shape.regret_nats == math.inf


def _limit(shape: ShapeFinding) -> float | None:
    """Return the largest regret that counts as none."""
    if shape.limit_nats is not None or shape.best_loss is None:
        return shape.limit_nats
    return REGRET_SHARE * abs(shape.best_loss)


def _interval(shape: ShapeFinding) -> tuple[float, float] | None:
    """Return the 95% interval of a regret; None without an error."""
    if shape.regret_low_nats is not None and shape.regret_high_nats is not None:
        return shape.regret_low_nats, shape.regret_high_nats
    lost = _finite(shape.regret_nats)
    if lost is None or not shape.regret_se_nats:
        return None
    return lost - NUM_SE * shape.regret_se_nats, lost + NUM_SE * shape.regret_se_nats


def _largest(finding: Finding) -> str:
    if diverging := [finding.name(shape) for shape in finding.shapes if _diverges(shape)]:
        return f"diverges at {listed(diverging)}"
    regrets = [
        (lost, finding.name(shape))
        for shape in finding.shapes
        if (lost := _finite(shape.regret_nats)) is not None and not shape.is_base
    ]
    if not regrets:
        return "unknown"
    largest, where = max(regrets)
    return f"up to {finding.judged.amount(largest)} at {where}" if largest > 0 else "none measured"


def _draw_regrets(axes: Axes, findings: Sequence[Finding], looks: Mapping[str, tuple[str, str]], unit: str) -> None:
    """Draw the regrets of each finding. The y-axis is logarithmic, with a break above zero."""
    shapes = [shape for finding in findings for shape in finding.shapes]
    style.log2_scale_axis(axes, [shape.scale for shape in shapes], findings[0].scale_name)
    ends = [end for shape in shapes for end in _interval(shape) or ()]
    broken = broken_axis([*(_finite(shape.regret_nats) for shape in shapes), *ends, *map(_limit, shapes)])
    draw_broken_axis(axes, broken, unit, strip=any(map(_diverges, shapes)))
    for number, finding in enumerate(findings):
        shift = SPREAD * (number - (len(findings) - 1) / 2)
        _draw_line(axes, broken, finding, *looks[finding.parameterization], shift)
    _draw_limit(axes, broken, shapes)


def _draw_line(axes: Axes, broken: BrokenAxis, finding: Finding, color: str, marker: str, shift: float) -> None:
    known = [shape for shape in finding.shapes if _finite(shape.regret_nats) is not None]
    x = [float(np.log2(shape.scale)) + shift for shape in known]
    y = [broken.at(shape.regret_nats or 0.0) for shape in known]
    axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.4, zorder=3)
    for at, shape in zip(x, known, strict=True):
        if (interval := _interval(shape)) is not None:
            low, high = (broken.at(end(shape.regret_nats or 0.0, *interval)) for end in (min, max))
            axes.plot([at, at], [low, high], color=color, linewidth=1.6, marker="_", markersize=7, zorder=3)
    for shape in filter(_diverges, finding.shapes):
        at = float(np.log2(shape.scale)) + shift
        axes.plot(at, broken.strip, marker="x", color=color, markersize=7, markeredgewidth=1.8)


def _draw_limit(axes: Axes, broken: BrokenAxis, shapes: Sequence[ShapeFinding]) -> None:
    limits: dict[float, float] = {}
    for shape in shapes:
        if (limit := _limit(shape)) is not None:
            limits[shape.scale] = max(limit, limits.get(shape.scale, 0.0))
    if limits:
        x = [float(np.log2(scale)) for scale in sorted(limits)]
        y = [broken.at(limits[scale]) for scale in sorted(limits)]
        axes.plot(x, y, color=INK, alpha=FAINT, linestyle=":", linewidth=1.4)


REGRET = HPFigure(
    name="regret",
    question="What does the transferred HP cost at each scale?",
    infos=lambda given: {axis: regret_block(given.report, axis) for axis in given.axes},
    draw=draw,
    of_lines=True,
)


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


def optimum_block(report: TransferReport, axis: str) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis, report.control)
    lines = [line_of(finding) for finding in findings]
    if not any(line.points for line in lines):
        return f"no shape along {axis} has an optimum of {report.hp}"
    drifts = [
        f"{line.parameterization} " + ("not a line" if not line.is_line else _drift(line.drift)) for line in lines
    ]
    scale = findings[0].scale_name
    rows = [
        (axis, line.parameterization, at_scale, at.kind, y, at.low_log2, at.high_log2, line.slope)
        for line in lines
        for at_scale, y, at in line.points
    ]
    columns = ["axis", "parameterization", scale, "kind", "log2_hp", "low_log2", "high_log2", "octaves_per_doubling"]
    looks = style.marks([line.parameterization for line in lines], report.control)
    has_drift = any(line.drift is not None for line in lines)
    chart = Chart(
        x=scale,
        lines=(),
        color="arm",
        looks=looks,
        legend="right",
        keys=(key("fitted drift", linestyle="--"),) if has_drift else (),
        finish=lambda axes, *_: _draw_optima(axes, lines, looks, scale, report.hp),
    )
    return Block(
        title=f"Drift of the best {report.hp} along {axis}, in octaves per doubling: {listed(drifts)}",
        caption=" ".join([CAPTION, f"A flat line means that {staying(findings)}.", *notes_on(findings)]),
        frame=pd.DataFrame(rows, columns=columns),
        drawn=pd.DataFrame({"arm": list(looks)}),
        charts=(chart,),
        height=3.4,
        foot=0.5,
    )


def _drift(drift: Drift | None) -> str:
    if drift is None or (drift.bounds and drift.low is None and drift.high is None):
        return "unknown"
    return with_interval(drift.octaves_per_doubling, drift.low, drift.high)


def line_of(finding: Finding) -> OptimumLine:
    """Return the optima of a finding, and the line through them."""
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


def _draw_optima(
    axes: Axes, lines: Sequence[OptimumLine], looks: Mapping[str, tuple[str, str]], scale: str, hp: str
) -> None:
    style.log2_scale_axis(axes, [at for line in lines for at, *_ in line.points], scale)
    axes.set_ylabel(octaves_of(f"of the best {hp}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    for i, line in enumerate(lines):
        color, marker = looks[line.parameterization]
        _draw_points(axes, line, color, marker, SPREAD * (i - (len(lines) - 1) / 2))
        _draw_fit(axes, line, color)
    _set_limits(axes, lines)


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


def _set_limits(axes: Axes, lines: Sequence[OptimumLine]) -> None:
    """Show every optimum and at least two octaves, so that a drift of a few hundredths looks flat."""
    every = [(at.log2_value, at.low_log2, at.high_log2) for line in lines for _, _, at in line.points]
    heights = [y for ends in every for y in ends if y is not None]
    low, high = min(heights), max(heights)
    margin = max(0.0, 2.0 - (high - low)) / 2 + 0.4
    axes.set_ylim(low - margin, high + margin)


OPTIMUM = HPFigure(
    name="optimum",
    question="Where is the best HP at each scale, and how does it drift?",
    infos=lambda given: {axis: optimum_block(given.report, axis) for axis in given.axes},
    draw=draw,
    of_lines=True,
)
