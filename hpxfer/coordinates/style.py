"""What the figures of a check have in common: colors, axes, legends, and the line above all panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hpxfer.coordinates.report import AxisReport, CheckReport

MISS, GRAY = "#c1121f", "0.45"
PNG_DPI = 130
# The line of a prediction, on top of what was measured.
PREDICTED: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 3)), "linewidth": 0.9, "zorder": 5}
# Of viridis, from the smallest scale to the largest: darker is wider.
_LIGHTEST, _DARKEST = 0.85, 0.1


def scale_colors(scales: Sequence[float]) -> dict[float, str]:
    """Return scale -> color, from light to dark."""
    ordered = sorted(scales)
    step = (_DARKEST - _LIGHTEST) / max(len(ordered) - 1, 1)
    return {scale: to_hex(matplotlib.colormaps["viridis"](_LIGHTEST + step * i)) for i, scale in enumerate(ordered)}


def verdict_title(report: CheckReport, axis: AxisReport) -> str:
    """Return what the figures of an axis say above all panels."""
    verdict = axis.answer
    if axis.limit is not None and axis.limit.missed:
        verdict = "FAILED, the losses miss their limit"
    elif verdict == "FAILED" and axis.follows:
        verdict = "FAILED, features do not keep their size"
    if not any(axis.count(each) for each in ("ok", "miss", "unclear")):
        return f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict}"
    counts = f"{axis.count('ok')} ok, {axis.count('miss')} missed, {axis.count('unclear')} unclear"
    return f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict} ({counts})"


def step_colors(steps: Sequence[int]) -> dict[int, str]:
    """Return step -> color, from light to dark: another ramp than that of the scales."""
    last = max(len(steps) - 1, 1)
    return {step: to_hex(matplotlib.colormaps["plasma"](0.85 - 0.85 * i / last)) for i, step in enumerate(steps)}


def set_up(axes: Axes) -> None:
    """Give a panel its spines, grid and small labels."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7, which="both")


def log_sizes(axes: Axes, sizes: Sequence[float], min_ratio: float) -> None:
    """Make y a log axis of sizes > 0 with plain numbers, whose limits are at least `min_ratio` apart."""
    axes.set_yscale("log")
    found = list(sizes) or [1.0]
    ratio = max(found) / min(found)
    spare = math.sqrt(max(min_ratio / ratio, 1.0)) * 1.15
    axes.set_ylim(min(found) / spare, max(found) * spare)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, handles: Sequence[Line2D], title: str) -> None:
    """Add a legend below all panels, on one line."""
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": len(handles), "frameon": False}
    figure.legend(handles=handles, title=title, fontsize=8, title_fontsize=8, **where)
