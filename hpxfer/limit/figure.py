"""The figure of a solved limit: loss, outputs, gates, logits and features over updates, with the solver's error.

`limit_info` decides everything that is shown and is pure. `draw_limit` only draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpxfer.limit.solve import Limit
from hpxfer.limit.text import Solved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Title -> the series of a panel, with its label.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loss": (("loss", "loss"),),
    "weights of the experts": (("gate_mean", "mean"), ("gate_variance", "variance over experts")),
    "logits of the router": (("logit_mean", "mean"), ("logit_variance", "variance over experts")),
    "size of features (RMS)": (("h1_rms", "h1"), ("h3_rms", "h3")),
}
MOST_OUTPUTS = 8
ERRORS = 2.0  # standard errors that a band shows on each side


@dataclass(frozen=True, kw_only=True)
class Line:
    """A number over updates, with its standard error. No error is known of a single draw."""

    label: str
    mean: tuple[float, ...]
    error: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class LimitInfo:
    """All that the figure shows."""

    title: str
    panels: tuple[Panel, ...]


def limit_info(found: Solved) -> LimitInfo:
    """Return what the figure shows. Outputs are those of the first pass's samples, if all passes have as many."""
    network, limit = found.network, found.limit
    regime = "residual network" if network.regime == "residual" else f"regime {network.regime}"
    how = "exact" if limit.is_exact else f"{limit.num_sites} sites, {limit.num_seeds} seeds"
    panels = [
        Panel(title=title, lines=tuple(_line(limit, name, label) for name, label in series))
        for title, series in PANELS.items()
    ]
    if outputs := _outputs(limit):
        panels.insert(1, Panel(title="outputs, a line per sample", lines=outputs))
    return LimitInfo(
        title=f"The limit of {network.parameterization} in {regime}, {network.gate} gate ({how})",
        panels=tuple(panels),
    )


def _line(limit: Limit, name: str, label: str) -> Line:
    series = limit.series[name]
    return Line(
        label=label,
        mean=tuple(series.mean.tolist()),
        error=None if series.error is None else tuple(series.error.tolist()),
    )


def _outputs(limit: Limit) -> tuple[Line, ...]:
    """Return one line per output of a sample, of the first few. Passes with other samples have none."""
    if len({each.shape for each in limit.outputs}) > 1:
        return ()
    values = np.stack([each.reshape(-1) for each in limit.outputs])
    errors = None if limit.output_errors is None else np.stack([each.reshape(-1) for each in limit.output_errors])
    return tuple(
        Line(
            label=f"f{k + 1}",
            mean=tuple(values[:, k].tolist()),
            error=None if errors is None else tuple(errors[:, k].tolist()),
        )
        for k in range(min(values.shape[1], MOST_OUTPUTS))
    )


def draw_limit(info: LimitInfo) -> Figure:
    """Return the figure. It needs no window and no global state."""
    from hpxfer.figures.style import look, panels

    with look():
        figure, grid = panels(info.title, len(info.panels), columns=3, height=2.7, width=11.0)
        figure.set_facecolor("white")
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    from hpxfer.figures.style import MARKS, TICKS, ramp

    many = len(panel.lines) > 2
    colors = ramp(len(panel.lines)) if many else [color for color, _ in MARKS[: len(panel.lines)]]
    for line, color in zip(panel.lines, colors, strict=True):
        updates, mean = np.arange(len(line.mean)), np.array(line.mean)
        if line.error is not None:
            error = ERRORS * np.array(line.error)
            axes.fill_between(updates, mean - error, mean + error, color=color, alpha=0.25, linewidth=0)
        axes.plot(updates, mean, color=color, linewidth=1.4, marker="o", markersize=2.5, label=line.label)
    axes.set_title(panel.title)
    axes.set_xlabel("updates")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS, integer=True))
    if len(panel.lines) > 1 and not many:
        axes.legend(fontsize=8, handlelength=1.2)
