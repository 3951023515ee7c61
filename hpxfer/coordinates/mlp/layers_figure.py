"""Coordinate checks per layer, as in Why Routers Freeze, Figures 3 to 6: sizes against the scale, one line per step.

The upper row has the RMS of the change since the start, the lower row that of the activation. Both axes are
logarithmic. A title names the slope at the last step with its interval, and a dashed line has the slope that is
predicted there. `layers_info` is pure and decides what is shown; `draw_layers` only draws it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.style import GRAY, MISS, PREDICTED, legend_below, log_sizes, set_up, step_colors, verdict_title

PANEL_INCHES = (2.75, 2.6)
MIN_RATIO = 10.0  # of the limits of a panel, so that noise of a few percent looks flat
# Title -> role, quantity of the change, quantity of the activation.
LAYERS = {
    "input features h1": ("embedding", "change", "activation"),
    "router logits": ("router", "change", "logits"),
    "gates": ("router", "gate: change", "gate"),
    "single experts": ("expert_out", "change", "activation"),
    "experts' sum h3": ("expert_out", "h3: change", "h3"),
    "output f": ("readout", "change", "activation"),
}


@dataclass(frozen=True, kw_only=True)
class LayerPanel:
    """A quantity against the scale: step -> its size at each scale, without exact zeros."""

    title: str
    slope: str  # at the last step
    missed: bool
    lines: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]  # step -> scales, sizes
    guide: tuple[tuple[float, float], tuple[float, float]] | None  # the ends of the predicted slope


@dataclass(frozen=True, kw_only=True)
class LayersInfo:
    """All that the figure shows: the rows for the change and for the activation."""

    title: str
    scale_name: str
    scales: tuple[float, ...]
    steps: dict[int, str]  # step -> color
    rows: tuple[tuple[str, tuple[LayerPanel, ...]], ...]  # what a row shows, and its panels


def layers_info(report: CheckReport, axis: AxisReport) -> LayersInfo:
    """Return what the figure of an axis shows."""
    steps = shown_steps(report.steps)
    fits = [fit for fit in axis.shown if fit.layer is None]
    changes = tuple(_panel(name, fits, role, change, steps) for name, (role, change, _) in LAYERS.items())
    sizes = tuple(_panel(name, fits, role, size, (0, *steps)) for name, (role, _, size) in LAYERS.items())
    return LayersInfo(
        title=verdict_title(report, axis),
        scale_name=axis.scale_name,
        scales=tuple(sorted(axis.scales)),
        steps=step_colors((0, *steps)),
        rows=(("RMS of the change", changes), ("RMS", sizes)),
    )


def shown_steps(last: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the last step."""
    powers = [2**power for power in range(last.bit_length()) if 2**power < last]
    return (*powers, last)


def _panel(name: str, fits: Sequence[Fit], role: str, quantity: str, steps: Sequence[int]) -> LayerPanel:
    own = {fit.step: fit for fit in fits if (fit.role, fit.quantity) == (role, quantity)}
    lines: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for step in steps:
        points = [] if step not in own else list(zip(own[step].scales, own[step].magnitudes, strict=True))
        known = [(scale, size) for scale, size in points if size > 0 and math.isfinite(size)]
        if known:
            lines[step] = tuple(scale for scale, _ in known), tuple(size for _, size in known)
    last = own.get(steps[-1])
    return LayerPanel(
        title=name,
        slope=_slope(last),
        missed=last is not None and last.verdict == "miss",
        lines=lines,
        guide=_guide(last),
    )


def _slope(fit: Fit | None) -> str:
    if fit is None:
        return "not measured"
    if not any(fit.magnitudes):
        return "exactly zero"
    if fit.slope is None or fit.low is None or fit.high is None:
        return "no slope"
    return f"slope {fit.slope:+.2f} [{fit.low:+.2f}, {fit.high:+.2f}]"


def _guide(fit: Fit | None) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the ends (scales, sizes) of a line of the predicted slope through the middle of the points."""
    if fit is None or fit.slope is None or fit.predicted is None:
        return None
    kept = [(scale, size) for scale, size in zip(fit.scales, fit.magnitudes, strict=True) if size > 0]
    x, y = np.mean(np.log(kept), axis=0)
    ends = (kept[0][0], kept[-1][0])
    return ends, tuple(math.exp(y + fit.predicted * (math.log(end) - x)) for end in ends)  # type: ignore[return-value]


def draw_layers(info: LayersInfo) -> Figure:
    """Return the figure. It needs no window and no global state."""
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(LAYERS), height * len(info.rows) + 1.0), layout="constrained")
    figure.suptitle(info.title, fontsize=12, fontweight="bold")
    grid = figure.subplots(len(info.rows), len(LAYERS), squeeze=False)
    for axes_row, (what, panels) in zip(grid, info.rows, strict=True):
        axes_row[0].set_ylabel(what, fontsize=9)
        for axes, panel in zip(axes_row, panels, strict=True):
            _draw_panel(axes, info, panel)
    for axes in grid[-1]:
        axes.set_xlabel(info.scale_name, fontsize=8)
    handles = [
        Line2D([], [], color=color, marker="o", markersize=3, label=f"{step}") for step, color in info.steps.items()
    ]
    handles.append(Line2D([], [], **PREDICTED, label="predicted slope at the last step"))
    legend_below(figure, handles, "updates")
    return figure


def _draw_panel(axes: Axes, info: LayersInfo, panel: LayerPanel) -> None:
    axes.set_title(f"{panel.title}\n{panel.slope}", fontsize=8.5, color=MISS if panel.missed else "black")
    set_up(axes)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(info.scales)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(info.scales[0] / 1.15, info.scales[-1] * 1.15)
    log_sizes(axes, [size for _, sizes in panel.lines.values() for size in sizes], MIN_RATIO)
    for step, (scales, sizes) in panel.lines.items():
        axes.plot(scales, sizes, color=info.steps[step], linewidth=1.3, marker="o", markersize=3)
    if panel.guide:
        axes.plot(*panel.guide, **PREDICTED)
    if not panel.lines:
        axes.text(0.5, 0.5, panel.slope, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=GRAY)
