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
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.figures.text import along, listed
from hpxfer.verdict.thresholds import CONTROL, NUM_SE, REGRET_SHARE

# Losses, in nats, at which the log axis has a tick.
TICKS = tuple(digit * 10.0**power for power in range(-7, 3) for digit in (1, 2, 5))
# The log axis starts no lower than this fraction of its top. What lies below, zero included, is under the break.
LEAST_SHARE = 1e-3
GAP = 0.22  # from the start of the log axis down to zero, as a fraction of its height
LEAST_TOP = 0.01  # nats, where nothing above zero is known
STRIP = 0.12  # the height of the strip for what diverged, as a fraction of the log part
SPREAD = 0.05  # doublings between the marks of two parameterizations, so that their bars can be told apart
NONE = "none\nmeasured"


@dataclass(frozen=True, kw_only=True)
class BrokenAxis:
    """A y-axis that is logarithmic from `low` to `high` nats. Below it, after a break, one height stands for zero."""

    low: float
    high: float

    @property
    def height(self) -> float:
        """The height of the log part, in decades."""
        return math.log10(self.high / self.low)

    @property
    def zero(self) -> float:
        """Where zero is drawn."""
        return math.log10(self.low) - GAP * self.height

    @property
    def break_at(self) -> float:
        """The middle of the break."""
        return math.log10(self.low) - 0.45 * GAP * self.height

    def at(self, nats: float) -> float:
        """Return where a loss is drawn. All that lies below the log part is drawn at zero."""
        return math.log10(nats) if nats >= self.low else self.zero


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
                *(shape.regret_se_nats, *(_interval(shape) or (None, None)), _finite(shape.regret_percent)),
                *(shape.regret_octave_share, _limit(shape), _diverges(shape)),
            )
            for finding in self.findings
            for shape in finding.shapes
        ]
        columns = ["axis", "parameterization", f"transferred_{self.hp}", self.scale_name, "regret_nats", "se_nats"]
        shares = ["percent_of_loss", "share_of_octave_cost", "limit_nats", "diverged"]
        return pd.DataFrame(rows, columns=[*columns, "low_nats", "high_nats", *shares])


def regret_info(report: TransferReport, axis: str) -> RegretInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    findings = along(report.findings, axis)
    known = tuple(finding for finding in findings if finding.base_value is not None)
    if all(shape.is_base for finding in findings for shape in finding.shapes):
        return f"no shape along {axis} beyond the base"
    if all(shape.regret_nats is None for finding in known for shape in finding.shapes):
        return f"no shape along {axis} has a result at a transferred {report.hp}"
    growths = [
        f"With {finding.parameterization}, the loss given up grows per doubling by {trend.share_of_gain:.0%} of "
        "what the doubling gains."
        for finding in known
        if (trend := finding.regret_trend) is not None and trend.share_of_gain is not None and trend.share_of_gain > 0
    ]
    caption = (
        "Loss at the HP transferred from the base minus the best loss of the shape. The bar is the 95% interval. Below "
        "the break of the axis no loss was measured; at the base, both are the same grid cell."
    )
    largest = listed([f"{finding.parameterization} {_largest(finding)}" for finding in known])
    return RegretInfo(
        title=f"Loss given up by the {report.hp} tuned at the base, along {axis}: {largest}",
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
    """Return the largest regret that counts as none, in nats."""
    if shape.limit_nats is not None or shape.best_loss is None:
        return shape.limit_nats
    return REGRET_SHARE * shape.best_loss


def _interval(shape: ShapeFinding) -> tuple[float, float] | None:
    """Return the 95% interval of a regret; None without an error."""
    if shape.regret_low_nats is not None and shape.regret_high_nats is not None:
        return shape.regret_low_nats, shape.regret_high_nats
    nats = _finite(shape.regret_nats)
    if nats is None or not shape.regret_se_nats:
        return None
    return nats - NUM_SE * shape.regret_se_nats, nats + NUM_SE * shape.regret_se_nats


def _largest(finding: Finding) -> str:
    if any(map(_diverges, finding.shapes)):
        return "diverges"
    regrets = [
        nats for shape in finding.shapes if (nats := _finite(shape.regret_nats)) is not None and not shape.is_base
    ]
    if not regrets:
        return "unknown"
    return f"up to {max(regrets):.2g} nats" if max(regrets) > 0 else "none measured"


def draw_regret(info: RegretInfo) -> Figure:
    """Return the figure. Its y-axis is logarithmic, with a break above zero."""
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=3.4)
        style.log2_scale_axis(axes, [shape.scale for shape in info.shapes], info.scale_name)
        broken = _axis_of(info)
        strip = any(map(_diverges, info.shapes))
        _draw_axis(axes, broken, strip=strip)
        look_of = style.marks([finding.parameterization for finding in info.findings], CONTROL)
        for number, finding in enumerate(info.findings):
            color, marker = look_of[finding.parameterization]
            shift = SPREAD * (number - (len(info.findings) - 1) / 2)
            _draw_line(axes, broken, finding, color, marker, shift)
        _draw_limit(axes, broken, info)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _axis_of(info: RegretInfo) -> BrokenAxis:
    """Return an axis that shows every regret, interval and limit above zero, down to LEAST_SHARE of the largest."""
    found = [nats for shape in info.shapes if (nats := _finite(shape.regret_nats)) is not None]
    found += [end for shape in info.shapes for end in _interval(shape) or ()]
    found += [limit for shape in info.shapes if (limit := _limit(shape)) is not None]
    positive = [nats for nats in found if nats > 0] or [LEAST_TOP]
    high = 1.3 * max(positive)
    return BrokenAxis(low=max(0.8 * min(positive), LEAST_SHARE * high), high=high)


def _draw_axis(axes: Axes, broken: BrokenAxis, *, strip: bool) -> None:
    """Set the y-axis, mark its break, and add a strip for what diverged."""
    top, lane = math.log10(broken.high), STRIP * broken.height
    bottom = broken.zero - 0.06 * broken.height
    axes.set_ylim(bottom, top + (lane if strip else 0.0))
    ticks = [tick for tick in TICKS if broken.low <= tick <= broken.high] or [broken.low, broken.high]
    places = [broken.zero, *map(math.log10, ticks)]
    axes.set_yticks(places, [NONE, *(f"{tick:.2g}" for tick in ticks)])
    axes.set_ylabel("loss given up (nats, log scale)")
    half = 0.018 * broken.height  # of the gap in the spine
    axes.spines["left"].set_bounds(broken.break_at + half, axes.get_ylim()[1])
    on_spine = {"transform": axes.get_yaxis_transform(), "clip_on": False, "color": INK}
    axes.plot([0, 0], [bottom, broken.break_at - half], linewidth=0.8, **on_spine)  # type: ignore[arg-type]
    for middle in (broken.break_at - half, broken.break_at + half):
        axes.plot([-0.012, 0.012], [middle - half, middle + half], linewidth=1.1, zorder=5, **on_spine)  # type: ignore[arg-type]
    axes.axhline(broken.break_at, color=INK, alpha=0.25, linewidth=0.8, linestyle=(0, (1, 3)))
    if strip:
        axes.axhspan(top, top + lane, color=INK, alpha=0.06, linewidth=0)
        offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axes.annotate("diverged", (axes.get_xlim()[0], top + lane / 2), **offset)  # type: ignore[arg-type]


def _draw_line(axes: Axes, broken: BrokenAxis, finding: Finding, color: str, marker: str, shift: float) -> None:
    known = [shape for shape in finding.shapes if _finite(shape.regret_nats) is not None]
    x = [float(np.log2(shape.scale)) + shift for shape in known]
    y = [broken.at(shape.regret_nats or 0.0) for shape in known]
    axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.4, label=finding.parameterization, zorder=3)
    for at, shape in zip(x, known, strict=True):
        if (interval := _interval(shape)) is not None:
            low, high = map(broken.at, interval)
            axes.plot([at, at], [low, high], color=color, linewidth=1.6, marker="_", markersize=7, zorder=3)
    top = math.log10(broken.high) + STRIP * broken.height / 2
    for shape in filter(_diverges, finding.shapes):
        axes.plot(np.log2(shape.scale) + shift, top, marker="x", color=color, markersize=7, markeredgewidth=1.8)


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
)
