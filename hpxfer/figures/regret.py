"""Regret against scale: what the HP transferred from the base costs at each shape, beside the limit of the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpxfer.analysis import Finding, ShapeFinding, TransferReport
from hpxfer.figures import style
from hpxfer.figures.broken_axis import BrokenAxis, broken_axis, draw_broken_axis
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.thresholds import CONTROL, NUM_SE, REGRET_SHARE

SPREAD = 0.05  # doublings between the marks of two parameterizations, so that their bars can be told apart


@dataclass(frozen=True, kw_only=True)
class RegretInfo:
    """The regrets of one HP along one axis."""

    title: str
    caption: str
    hp: str
    axis: str
    scale_name: str
    findings: tuple[Finding, ...]  # those with an HP to transfer, one per parameterization
    judged: JudgedLoss = NATS
    control: str | None = CONTROL  # the arm that the others are compared with

    @property
    def shapes(self) -> list[ShapeFinding]:
        """The shapes of all findings."""
        return [shape for finding in self.findings for shape in finding.shapes]

    def table(self) -> pd.DataFrame:
        """Return one row per regret."""
        rows = [
            (
                *(self.axis, finding.parameterization, finding.base_value, shape.scale, _finite(shape.regret_nats)),
                *(shape.regret_se_nats, *(_interval(shape) or (None, None)), _finite(shape.regret_percent)),
                *(shape.regret_octave_share, _limit(shape), _diverges(shape)),
            )
            for finding in self.findings
            for shape in finding.shapes
        ]
        columns = ["axis", "parameterization", f"transferred_{self.hp}", self.scale_name, "regret_nats", "se_nats"]
        shares = ["percent_of_loss", "share_of_octave_cost", "limit_nats", "diverged"]
        return pd.DataFrame(rows, columns=[*columns, "low_nats", "high_nats", *shares]).rename(
            columns=self.judged.column
        )


def regret_info(report: TransferReport, axis: str) -> RegretInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis, report.control)
    known = tuple(finding for finding in findings if finding.base_value is not None)
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
    return RegretInfo(
        control=report.control,
        title=f"Loss given up by the {report.hp} tuned at the base, along {axis}: {largest}",
        caption=" ".join([caption, *growths]),
        hp=report.hp,
        axis=axis,
        scale_name=findings[0].scale_name,
        findings=known,
        judged=report.judged,
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


def draw_regret(info: RegretInfo) -> Figure:
    """Return the figure. Its y-axis is logarithmic, with a break above zero."""
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=3.4)
        style.log2_scale_axis(axes, [shape.scale for shape in info.shapes], info.scale_name)
        broken = _axis_of(info)
        strip = any(map(_diverges, info.shapes))
        draw_broken_axis(axes, broken, info.judged.unit, strip=strip)
        look_of = style.marks([finding.parameterization for finding in info.findings], info.control)
        for number, finding in enumerate(info.findings):
            color, marker = look_of[finding.parameterization]
            shift = SPREAD * (number - (len(info.findings) - 1) / 2)
            _draw_line(axes, broken, finding, color, marker, shift)
        _draw_limit(axes, broken, info)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _axis_of(info: RegretInfo) -> BrokenAxis:
    """Return an axis that shows every regret, interval and limit above zero."""
    found = [_finite(shape.regret_nats) for shape in info.shapes]
    found += [end for shape in info.shapes for end in _interval(shape) or ()]
    return broken_axis([*found, *(_limit(shape) for shape in info.shapes)])


def _draw_line(axes: Axes, broken: BrokenAxis, finding: Finding, color: str, marker: str, shift: float) -> None:
    known = [shape for shape in finding.shapes if _finite(shape.regret_nats) is not None]
    x = [float(np.log2(shape.scale)) + shift for shape in known]
    y = [broken.at(shape.regret_nats or 0.0) for shape in known]
    axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.4, label=finding.parameterization, zorder=3)
    for at, shape in zip(x, known, strict=True):
        if (interval := _interval(shape)) is not None:
            low, high = (broken.at(end(shape.regret_nats or 0.0, *interval)) for end in (min, max))
            axes.plot([at, at], [low, high], color=color, linewidth=1.6, marker="_", markersize=7, zorder=3)
    for shape in filter(_diverges, finding.shapes):
        at = float(np.log2(shape.scale)) + shift
        axes.plot(at, broken.strip, marker="x", color=color, markersize=7, markeredgewidth=1.8)


def _draw_limit(axes: Axes, broken: BrokenAxis, info: RegretInfo) -> None:
    limits: dict[float, float] = {}
    for shape in info.shapes:
        if (limit := _limit(shape)) is not None:
            limits[shape.scale] = max(limit, limits.get(shape.scale, 0.0))
    if limits:
        x = [float(np.log2(scale)) for scale in sorted(limits)]
        y = [broken.at(limits[scale]) for scale in sorted(limits)]
        axes.plot(x, y, color=INK, alpha=FAINT, linestyle=":", linewidth=1.4, label="limit of the verdict")


REGRET = HPFigure(
    name="regret",
    question="What does the transferred HP cost at each scale?",
    infos=lambda given: {axis: regret_info(given.report, axis) for axis in given.axes},
    draw=draw_regret,
    of_lines=True,
)
