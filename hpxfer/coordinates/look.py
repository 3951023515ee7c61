"""What the figures of a check have in common: colors, and the line above all panels."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.colors import to_hex

from hpxfer.coordinates.report import AxisReport, CheckReport

MISS, GRAY = "#c1121f", "0.45"
PNG_DPI = 130
# Of viridis, from the smallest scale to the largest: darker is wider.
_LIGHTEST, _DARKEST = 0.85, 0.1


def scale_colors(scales: Sequence[float]) -> dict[float, str]:
    """Return scale -> color, from light to dark."""
    ordered = sorted(scales)
    step = (_DARKEST - _LIGHTEST) / max(len(ordered) - 1, 1)
    return {scale: to_hex(matplotlib.colormaps["viridis"](_LIGHTEST + step * i)) for i, scale in enumerate(ordered)}


def verdict_title(report: CheckReport, axis: AxisReport) -> str:
    """Return what the figures of an axis say above all panels."""
    verdict = "passed" if axis.passed else "FAILED"
    if axis.must_be_stable and axis.follows and not axis.stable:
        verdict = "FAILED, features do not keep their size"
    counts = f"{axis.count('ok')} ok, {axis.count('miss')} missed, {axis.count('unclear')} unclear"
    return f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict} ({counts})"


def step_colors(steps: Sequence[int]) -> dict[int, str]:
    """Return step -> color, from light to dark: another ramp than that of the scales."""
    last = max(len(steps) - 1, 1)
    return {step: to_hex(matplotlib.colormaps["plasma"](0.85 - 0.85 * i / last)) for i, step in enumerate(steps)}
