"""The figure of a check in the layout of MSSP, Figures Q.18 to Q.43: three rows of panels against the updates.

Row 1 has the loss, the accuracy, what the last features moved by, and the router's logits, one line per scale. Row 2
has the exponents of propagating and effective updates, and row 3 those of the pieces of both passes and of gradients,
one line per role or piece. A line is missing where the quantity is exactly zero. The last column adds the router's
entropy and gradients in units of eps, which Why Routers Freeze speaks of. `papers_info` is pure and decides what is
shown; `draw_papers` only draws it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.coordinates.measure import ByScale, Fit
from hpxfer.coordinates.mlp.measures import ACCURACY, LOSS, PROBE
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.style import GRAY, PREDICTED, legend_below, log_sizes, scale_colors, set_up, verdict_title

PANEL_INCHES = (3.5, 2.7)
COLUMNS = 4
MIN_SPAN = 1.0  # of an exponent, so that noise of a few hundredths looks flat
MIN_RATIO = 3.0  # of the limits of a size, so that noise of a few percent looks flat
MOST_EXPONENT = 4.0  # a noisy slope beyond this would flatten all others
HEADROOM = 0.35  # of a panel of exponents, above its lines: there the legend covers nothing
ENTROPY = "entropy_of_all"
ROLES = {
    "embedding": ("#999933", "input"),
    "router": ("#d55e00", "router"),
    "expert_in": ("#0072b2", "expert in"),
    "expert_out": ("#009e73", "expert out"),
    "readout": ("#cc79a7", "readout"),
}
FORWARD = ("A1", "A2", "A3", "D")
BACKWARD = ("A4", "A5", "A6", "E")
PIECE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
SUFFIX_STYLES = {"": "-", ".1": ":", ".2": "-"}  # through the initial readout, and through its update


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a panel. `low` and `high` are empty where it has no band."""

    label: str
    color: str
    style: str
    steps: tuple[int, ...]
    heights: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. `predicted` has (exponent, first step, last step) of the predictions that are not zero."""

    title: str
    lines: tuple[Line, ...]
    kind: Literal["number", "share", "size", "exponent"] = "number"
    predicted: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PapersInfo:
    """All that the figure shows, row by row. A panel without a line is left out."""

    title: str
    scale_name: str
    steps: int
    scales: Mapping[str, str]  # label of a scale -> color
    rows: tuple[tuple[Panel, ...], ...]


def papers_info(report: CheckReport, axis: AxisReport) -> PapersInfo:
    """Return what the figure of an axis shows."""
    colors = scale_colors(axis.scales)
    whole = [fit for fit in axis.shown if fit.layer is None]
    last_block = max((fit.layer for fit in axis.fits if fit.layer is not None), default=None)
    last = [fit for fit in axis.shown if fit.layer == last_block]
    measures = [found for found in axis.measures if found.layer is None]
    rows = (
        (
            _numbers("training loss (probe)", measures, LOSS, PROBE, colors),
            _numbers("accuracy (probe)", measures, ACCURACY, PROBE, colors, kind="share"),
            _sizes("RMS of the change of the last features", last, "expert_out", "h3: change", colors),
            _sizes("RMS of the router's logits", whole, "router", "logits", colors),
        ),
        (
            _by_role("propagating update", whole, "propagating"),
            _by_role("effective update", whole, "effective", of_input="change"),
            _by_role("effective update / input", whole, "effective / input", of_input="change"),
            _numbers("router entropy / log M", measures, ENTROPY, "router", colors),
        ),
        (
            _pieces("forward: pieces of the experts' sum", whole, "expert_out", "h3", FORWARD, ("",)),
            _pieces("backward: pieces of df/dh1", whole, "expert_in", "df/dh1", BACKWARD, (".1", ".2")),
            _by_role("gradient", whole, "gradient"),
            _by_role("gradient / eps (Adam)", whole, "gradient / eps"),
        ),
    )
    return PapersInfo(
        title=verdict_title(report, axis),
        scale_name=axis.scale_name,
        steps=report.steps,
        scales={f"{scale:g}": color for scale, color in colors.items()},
        rows=tuple(kept for row in rows if (kept := tuple(panel for panel in row if panel.lines))),
    )


def _numbers(
    title: str,
    measures: Sequence[ByScale],
    name: str,
    role: str,
    colors: Mapping[float, str],
    kind: Literal["number", "share"] = "number",
) -> Panel:
    """Return the panel of a measure: one line per scale."""
    found = [each for each in measures if (each.measure, each.role) == (name, role)]
    series = {scale: {} for scale in colors}  # type: dict[float, dict[int, float]]
    for each in found:
        for scale, value in zip(each.scales, each.values, strict=True):
            series[scale][each.step] = value
    return Panel(title=title, lines=tuple(_lines_by_scale(series, colors)), kind=kind)


def _sizes(title: str, fits: Sequence[Fit], role: str, quantity: str, colors: Mapping[float, str]) -> Panel:
    """Return the panel of a size: one line per scale. Exact zeros are left out."""
    series = {scale: {} for scale in colors}  # type: dict[float, dict[int, float]]
    for fit in fits:
        if (fit.role, fit.quantity) == (role, quantity):
            for scale, size in zip(fit.scales, fit.magnitudes, strict=True):
                if size:
                    series[scale][fit.step] = size
    return Panel(title=title, lines=tuple(_lines_by_scale(series, colors)), kind="size")


def _lines_by_scale(series: Mapping[float, Mapping[int, float]], colors: Mapping[float, str]) -> Iterator[Line]:
    for scale, by_step in series.items():
        known = {step: value for step, value in sorted(by_step.items()) if math.isfinite(value)}
        if known:
            yield Line(
                label=f"{scale:g}",
                color=colors[scale],
                style="-",
                steps=tuple(known),
                heights=tuple(known.values()),
            )


def _by_role(title: str, fits: Sequence[Fit], quantity: str, *, of_input: str | None = None) -> Panel:
    """Return the exponents of a quantity, one line per role. `of_input` stands in for the input layer.

    The input of that layer never moves, so that its change is its effective update.
    """
    names = {role: of_input if role == "embedding" and of_input else quantity for role in ROLES}
    groups = [
        (ROLES[role][1], ROLES[role][0], "-", [fit for fit in fits if (fit.role, fit.quantity) == (role, name)])
        for role, name in names.items()
    ]
    return _exponents(title, groups)


def _pieces(
    title: str, fits: Sequence[Fit], role: str, of: str, names: Sequence[str], suffixes: Sequence[str]
) -> Panel:
    """Return the exponents of the pieces of a sum, one line per piece. A single piece is no decomposition."""
    groups = []
    for name, color in zip(names, PIECE_COLORS, strict=True):
        for suffix in suffixes:
            own = [fit for fit in fits if (fit.role, fit.quantity) == (role, f"{of}: {name}{suffix}")]
            groups.append((f"{name}{suffix}", color, SUFFIX_STYLES[suffix], own))
    panel = _exponents(title, groups)
    return panel if len(panel.lines) > 1 else Panel(title=title, lines=())


def _exponents(title: str, groups: Sequence[tuple[str, str, str, Sequence[Fit]]]) -> Panel:
    lines, expected = [], {}  # type: list[Line], dict[float, list[int]]
    for label, color, style, fits in groups:
        shown = [
            (fit.step, fit.slope, fit.low, fit.high)
            for fit in sorted(fits, key=lambda fit: fit.step)
            if fit.slope is not None and fit.low is not None and fit.high is not None
        ]
        if not shown:
            continue
        steps, slopes, low, high = (tuple(column) for column in zip(*shown, strict=True))
        lines.append(Line(label=label, color=color, style=style, steps=steps, heights=slopes, low=low, high=high))
        for fit in fits:
            if fit.predicted and fit.step in steps:
                expected.setdefault(fit.predicted, []).append(fit.step)
    return Panel(
        title=f"exponent: {title}",
        lines=tuple(lines),
        kind="exponent",
        predicted=tuple((height, min(at), max(at)) for height, at in sorted(expected.items())),
    )


def draw_papers(info: PapersInfo) -> Figure:
    """Return the figure. It needs no window and no global state."""
    width, height = PANEL_INCHES
    num_rows = max(len(info.rows), 1)
    figure = Figure(figsize=(width * COLUMNS, height * num_rows + 0.9), layout="constrained")
    figure.suptitle(info.title, fontsize=12, fontweight="bold")
    grid = figure.subplots(num_rows, COLUMNS, squeeze=False)
    for axes_row, row in zip(grid, info.rows or ((),), strict=True):
        for axes in axes_row[len(row) :]:
            axes.remove()
        for axes, panel in zip(axes_row, row, strict=False):
            _draw_panel(axes, panel, info)
    handles = [Line2D([], [], color=color, marker="o", markersize=3, label=name) for name, color in info.scales.items()]
    handles.append(Line2D([], [], **PREDICTED, label="predicted exponent, where it is not 0"))
    legend_below(figure, handles, info.scale_name)
    return figure


def _draw_panel(axes: Axes, panel: Panel, info: PapersInfo) -> None:
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel("updates", fontsize=8)
    beyond = max(0.3, 0.03 * info.steps)
    axes.set_xlim(-1.2 * beyond, info.steps + 1.2 * beyond)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_up(axes)
    if panel.kind == "size":
        log_sizes(axes, [height for line in panel.lines for height in line.heights], MIN_RATIO)
    if panel.kind == "share":
        axes.set_ylim(-0.04, 1.04)
    marker = "o" if info.steps <= 10 else ""
    for line in panel.lines:
        axes.plot(
            *(line.steps, line.heights),
            color=line.color,
            linestyle=line.style,
            linewidth=1.4,
            marker=marker or ("o" if len(line.steps) == 1 else ""),
            markersize=2.5,
            label=line.label,
        )
        if line.low:
            axes.fill_between(line.steps, line.low, line.high, color=line.color, alpha=0.1, linewidth=0)
    if panel.kind == "exponent":
        _finish_exponents(axes, panel, beyond)


def _finish_exponents(axes: Axes, panel: Panel, beyond: float) -> None:
    heights = [height for line in panel.lines for height in line.heights if abs(height) <= MOST_EXPONENT]
    heights += [height for height, *_ in panel.predicted] + [0.0]
    low, high = min(heights), max(heights)
    spare = max(0.0, MIN_SPAN - (high - low)) / 2 + 0.15
    low, high = low - spare, high + spare
    axes.set_ylim(low, high + HEADROOM * (high - low))
    axes.axhline(0.0, color=GRAY, linewidth=0.7, zorder=1)
    for height, first, last in panel.predicted:
        axes.plot([first - beyond, last + beyond], [height, height], **PREDICTED)
    axes.legend(fontsize=6.5, frameon=False, loc="upper center", ncols=5, handlelength=1.0, columnspacing=0.7)
