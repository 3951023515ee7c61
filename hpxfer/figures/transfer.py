"""The transfer figure as data: loss against log2 HP, a panel a parameterization, a row an axis, a color a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pandas as pd

from hpxfer.analysis import Finding, TransferReport
from hpxfer.analysis.basin import Basin, basins
from hpxfer.analysis.optimum import Kind
from hpxfer.analysis.text import headline, loss_name, scale_text

# A row is shown up to the shallowest best loss plus this many times the typical rise within so many octaves of it.
HEADROOM = 1.4
OCTAVES_SHOWN = 2.0
# A regret may stretch the row up to this many typical rises; beyond, the basins would look flat.
MAX_STRETCH = 3.0
MIN_HEIGHT = 1e-3  # nats, of a row without any rise
X_MARGIN = 0.4  # octaves
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
    caption: str = (
        "Loss against the HP at every shape: the line is the median over seeds, the band their range. Where optima "
        "stand above one another, the HP transfers."
    )

    @property
    def rows(self) -> tuple[tuple[Panel, ...], ...]:
        """The panels, an axis a row."""
        return tuple(tuple(group) for _, group in groupby(self.panels, key=lambda panel: panel.axis))

    def table(self) -> pd.DataFrame:
        """Return the points drawn, a row for each HP of each shape; losses are empty where the HP diverged."""
        rows = []
        for panel in self.panels:
            for one in panel.series:
                place = (panel.axis, panel.parameterization, panel.scale_name, one.scale)
                points = zip(one.x, one.y_median, one.y_min, one.y_max, strict=True)
                rows += [(*place, *point, False) for point in points]
                rows += [(*place, x, math.nan, math.nan, math.nan, True) for x in one.censored]
        places = ["axis", "parameterization", "scale_name", "scale", "log2_hp"]
        return pd.DataFrame(rows, columns=[*places, "median_nats", "min_nats", "max_nats", "diverged"])


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
        title=f"{report.sweep}: {_conclusion(report)}",
        x_label=f"log2 {report.hp}",
        y_label=f"{loss_name(report.loss)} (nats)",
        panels=tuple(panels),
    )


def axis_transfer_info(report: TransferReport, line: pd.DataFrame, axis: str) -> TransferInfo | str:
    """Return what the figure of one axis of a report shows, or why there is nothing to show."""
    findings = tuple(one for one in report.findings if one.axis == axis)
    info = transfer_info(replace(report, findings=findings), line[line["axis"] == axis])
    if any(one.x or one.censored for panel in info.panels for one in panel.series):
        return info
    return f"no trial along {axis} has a result at a {report.hp} above 0"


def _conclusion(report: TransferReport) -> str:
    """Return the verdicts, e.g. `lr along width: completep-moe transfers, sp drifts`; of many axes by verdict."""
    if not report.findings:
        return f"nothing is known of {report.hp}"
    axes = list(dict.fromkeys(one.axis for one in report.findings))
    bare = any(one.verdict == "transfers" and one.lacks_control for one in report.findings)
    end = " (no control)" if bare else ""
    if len(axes) == 1:
        said = ", ".join(f"{one.parameterization} {_word(one)}" for one in report.findings)
        return f"{report.hp} along {axes[0]}: {said}{end}"
    labels = dict.fromkeys(one.parameterization for one in report.findings)
    parts = [_by_verdict([one for one in report.findings if one.parameterization == label], axes) for label in labels]
    return f"{report.hp} along {len(axes)} axes: {'; '.join(parts)}{end}"


def _by_verdict(findings: Sequence[Finding], axes: Sequence[str]) -> str:
    """Return a parameterization's verdicts, e.g. `sp drifts along width, transfers along depth, experts`."""
    words = sorted({_word(one) for one in findings})
    axes_of = {word: [one.axis for one in findings if _word(one) == word] for word in words}
    said = [f"{word} along {'all' if len(of) == len(axes) else ', '.join(of)}" for word, of in axes_of.items()]
    return f"{findings[0].parameterization} {', '.join(said)}"


def _word(finding: Finding) -> str:
    return "is undecided" if finding.verdict == "undecided" else finding.verdict


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
        name=scale_text(basin.scale) + (" (base)" if basin.is_base else ""),
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
