"""Regret against scale: what the HP transferred from the base costs at each shape, beside the limit of the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from hpxfer.analysis import Finding, ShapeFinding, TransferReport
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.figures.text import along, listed
from hpxfer.verdict.thresholds import CONTROL, REGRET_SHARE

# The y-axis is linear up to this many nats and logarithmic above. Seed noise has been larger in every sweep so far.
LINEAR = 0.001
DECADES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class RegretInfo:
    """The regrets of one HP along one axis."""

    title: str
    caption: str
    hp: str
    axis: str
    scale_name: str
    findings: tuple[Finding, ...]  # those with an HP to transfer, one per parameterization

    @property
    def shapes(self) -> list[ShapeFinding]:
        """The shapes of all findings."""
        return [shape for finding in self.findings for shape in finding.shapes]

    def table(self) -> pd.DataFrame:
        """Return one row per regret."""
        rows = [
            (
                *(self.axis, finding.parameterization, finding.base_value, shape.scale, _finite(shape.regret_nats)),
                *(shape.regret_se_nats, _finite(shape.regret_percent), _diverges(shape)),
            )
            for finding in self.findings
            for shape in finding.shapes
        ]
        columns = ["axis", "parameterization", f"transferred_{self.hp}", self.scale_name, "regret_nats", "se_nats"]
        return pd.DataFrame(rows, columns=[*columns, "percent_of_loss", "diverged"])


def regret_info(report: TransferReport, axis: str) -> RegretInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis)
    known = tuple(finding for finding in findings if finding.base_value is not None)
    if all(shape.is_base for finding in findings for shape in finding.shapes):
        return f"no shape along {axis} beyond the base"
    if all(shape.regret_nats is None for finding in known for shape in finding.shapes):
        return f"no shape along {axis} has a result at a transferred {report.hp}"
    growths = [
        f"With {finding.parameterization}, the regret grows per doubling by {trend.share_of_gain:.0%} of the gain in "
        "loss."
        for finding in known
        if (trend := finding.regret_trend) is not None and trend.share_of_gain is not None and trend.share_of_gain > 0
    ]
    caption = "Loss at the base's best HP minus the best loss of the shape, with two standard errors."
    largest = listed([f"{finding.parameterization} {_largest(finding)}" for finding in known])
    return RegretInfo(
        title=f"Regret of the {report.hp} tuned at the base, along {axis}: {largest}",
        caption=" ".join([caption, *growths]),
        hp=report.hp,
        axis=axis,
        scale_name=findings[0].scale_name,
        findings=known,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _diverges(shape: ShapeFinding) -> bool:
    return shape.regret_nats == math.inf


def _limit(shape: ShapeFinding) -> float | None:
    """Return the largest regret that counts as none, in nats: a fraction of the loss."""
    return None if shape.best_loss is None else REGRET_SHARE * shape.best_loss


def _largest(finding: Finding) -> str:
    if any(map(_diverges, finding.shapes)):
        return "diverges"
    regrets = [
        nats for shape in finding.shapes if (nats := _finite(shape.regret_nats)) is not None and not shape.is_base
    ]
    if not regrets:
        return "unknown"
    return f"up to {max(regrets):.2g} nats" if max(regrets) > 0 else "0"


def draw_regret(info: RegretInfo) -> Figure:
    """Return the figure. Its y-axis is linear near zero and logarithmic above."""
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=3.2)
        style.log2_scale_axis(axes, [shape.scale for shape in info.shapes], info.scale_name)
        known = [
            (nats, shape.regret_se_nats or 0.0)
            for shape in info.shapes
            if (nats := _finite(shape.regret_nats)) is not None
        ]
        limits = [limit for shape in info.shapes if (limit := _limit(shape)) is not None]
        top = 1.6 * max([*(nats + 2 * se for nats, se in known), *limits, LINEAR])
        bottom = min((nats for nats, _ in known), default=0.0)
        _regret_axis(axes, min(1.6 * bottom, -LINEAR / 3), top, strip=any(map(_diverges, info.shapes)))
        look_of = style.marks([finding.parameterization for finding in info.findings], CONTROL)
        for finding in info.findings:
            color, marker = look_of[finding.parameterization]
            _draw_line(axes, finding, color, marker, top)
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


def _draw_line(axes: Axes, finding: Finding, color: str, marker: str, top: float) -> None:
    known = [
        (float(np.log2(shape.scale)), nats, shape.regret_se_nats or 0.0)
        for shape in finding.shapes
        if (nats := _finite(shape.regret_nats)) is not None
    ]
    x, y = ([row[i] for row in known] for i in range(2))
    axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.6, label=finding.parameterization, zorder=3)
    for at, height, error in known:
        axes.plot([at, at], [max(height - 2 * error, min(height, 0.0)), height + 2 * error], color=color, linewidth=1.3)
    for shape in filter(_diverges, finding.shapes):
        axes.plot(np.log2(shape.scale), top * 1.33, marker="x", color=color, markersize=7, markeredgewidth=1.8)


def _draw_limit(axes: Axes, info: RegretInfo) -> None:
    limits: dict[float, float] = {}
    for shape in info.shapes:
        if (limit := _limit(shape)) is not None:
            limits[shape.scale] = max(limit, limits.get(shape.scale, 0.0))
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
