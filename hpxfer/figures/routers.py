"""Routers against the scale: entropy, load, updates, gradient, logits and choice, one color per parameterization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis.statistics.routers import (
    ABSOLUTE,
    BY_NOW,
    CHANGED,
    ENTROPY,
    GRADIENT,
    LOAD,
    LOGITS,
    MARGIN,
    MOVED,
    RELATIVE,
    SPREAD,
    UPDATE,
    RouterLine,
)
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, why_none, with_interval
from hpxfer.verdict import CONTROL, scale_text

NOTHING = "no trial has a curve of its router"
# What each panel is called, by metric.
PANELS = {
    ENTROPY: "entropy of the gates / log M",
    LOAD: "load deviation (fair shares)",
    RELATIVE: "update RMS (stds at init)",
    UPDATE: "update RMS",
    GRADIENT: "gradient RMS",
    BY_NOW: "update RMS / RMS now",
    MOVED: "moved (stds at init)",
    ABSOLUTE: "RMS of what has moved",
    LOGITS: "RMS of the logits",
    SPREAD: "RMS of logits less their mean",
    MARGIN: "top-K margin, median",
    CHANGED: "share with changed experts",
}
# What the title says of a quantity, the first one that was logged.
TITLES = {
    ENTROPY: "Router entropy as a share of log M",
    LOAD: "Load deviation of the experts, in fair shares,",
    RELATIVE: "Update of the router, in stds at init,",
    UPDATE: "Update of the router",
    GRADIENT: "Gradient of the router",
}
# An absolute size says the same as one in stds at init, and is drawn where a router starts at zero.
IN_PLACE_OF = {UPDATE: RELATIVE, ABSOLUTE: MOVED}
NUM_SE = 2
_STYLES = {"start": "--", "end": "-"}


@dataclass(frozen=True, kw_only=True)
class RouterPanel:
    """One quantity: a line per parameterization at the start of training, at its end, or both."""

    metric: str
    lines: tuple[RouterLine, ...]

    @property
    def is_power(self) -> bool:
        return any(line.exponent is not None for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class RoutersInfo:
    """The routers along one axis."""

    title: str
    axis: str
    scale_name: str
    panels: tuple[RouterPanel, ...]
    lines: tuple[RouterLine, ...]  # all quantities, also those without a panel
    control: str | None = CONTROL
    caption: str = (
        "Routers at the HP transferred from the base, as means over seeds and layers with two standard errors. Solid: "
        "the last logged step. Dashed: the first step, before any update. Thin: single layers at the end. Entropy 1: "
        "all M experts are equally likely; 0: one expert gets everything. The RMS of an update, and of the distance "
        "from the start, is in units of the std that the table draws the router with at that scale; where a router "
        "starts at zero it is absolute. Numbers above a panel are exponents of the scale at the end, with 95% "
        "intervals."
    )

    def table(self) -> pd.DataFrame:
        """Return one row per shape and quantity, with single layers as rows of their own."""
        rows: list[tuple[object, ...]] = []
        for line in self.lines:
            fit = (line.exponent, line.exponent_low, line.exponent_high)
            for point in line.points:
                where = (line.axis, line.parameterization, point.scale, line.metric, line.unit, line.when, point.step)
                rows.append((*where, None, point.mean, point.se, point.num_seeds, point.num_diverged, *fit))
                rows += [
                    (*where, layer, value, None, point.num_seeds, point.num_diverged, *fit)
                    for layer, value in enumerate(point.layers)
                ]
        columns = ["axis", "parameterization", self.scale_name, "quantity", "unit", "when", "step", "layer", "value"]
        more = ["se", "seeds", "diverged_seeds", "exponent", "exponent_low", "exponent_high"]
        return pd.DataFrame(rows, columns=[*columns, *more])


def routers_info(found: Sequence[RouterLine], axis: str, control: str | None = CONTROL) -> RoutersInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    lines = tuple(line for line in of_axis if line.points)
    if not lines:
        return why_none((line.why_not for line in of_axis), NOTHING)
    panels = []
    for metric in PANELS:
        has_relative = {line.parameterization for line in lines if line.metric == IN_PLACE_OF.get(metric)}
        kept = [line for line in lines if line.metric == metric and line.when in _STYLES]
        kept = [line for line in kept if line.parameterization not in has_relative]
        if kept:
            panels.append(RouterPanel(metric=metric, lines=tuple(kept)))
    return RoutersInfo(
        title=_title(lines, axis),
        axis=axis,
        scale_name=lines[0].scale_name,
        panels=tuple(panels),
        lines=lines,
        control=control,
    )


def _title(lines: Sequence[RouterLine], axis: str) -> str:
    """Return what is seen of the first quantity that was logged at the end of training, in one sentence."""
    ends = [line for line in lines if line.when == "end" and line.metric in TITLES]
    if not ends:
        return f"Routers along {axis}"
    metric = min((line.metric for line in ends), key=list(TITLES).index)
    kept = [line for line in ends if line.metric == metric]
    scales = sorted({point.scale for line in kept for point in line.points})
    span = f", from {kept[0].scale_name} {scale_text(scales[0])} to {scale_text(scales[-1])}" if len(scales) > 1 else ""
    return f"{TITLES[metric]} at the end of training{span}: {listed([_change(line) for line in kept])}"


def _change(line: RouterLine) -> str:
    first, last = line.points[0], line.points[-1]
    if first is last:
        return f"{line.parameterization} {last.mean:.2g}"
    if not _sure(last.mean - first.mean, first.se, last.se):
        return f"{line.parameterization} {first.mean:.2g} and {last.mean:.2g}, no sure change"
    verb = "falls" if last.mean < first.mean else "rises"
    return f"{line.parameterization} {verb} from {first.mean:.2g} to {last.mean:.2g}"


def _sure(difference: float, first: float | None, second: float | None) -> bool:
    """Return whether a difference is more than two of its standard errors. One seed is sure of nothing."""
    return first is not None and second is not None and abs(difference) > NUM_SE * math.hypot(first, second)


def draw_routers(info: RoutersInfo) -> Figure:
    """Return the figure: one panel per quantity."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=2.9, foot=0.6)
        names = list(dict.fromkeys(line.parameterization for line in info.lines))
        look_of = style.marks(names, info.control)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, panel, look_of, info.scale_name)
        handles = [
            Line2D([], [], color=color, marker=marker, markersize=5, label=name)
            for name, (color, marker) in look_of.items()
        ]
        handles.append(Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label="at the first step"))
        style.legend_below(figure, handles, columns=4)
    return figure


def _draw_panel(axes: Axes, panel: RouterPanel, look_of: Mapping[str, tuple[str, str]], scale_name: str) -> None:
    for line in panel.lines:
        color, marker = look_of[line.parameterization]
        is_end = line.when == "end"
        x = [math.log2(point.scale) for point in line.points]
        y = [point.mean for point in line.points]
        axes.plot(x, y, color=color, linestyle=_STYLES[line.when], linewidth=1.6 if is_end else 1.1, zorder=3)
        axes.plot(x, y, color=color, marker=marker, markersize=6 if is_end else 3, linestyle="none", zorder=3)
        if is_end:
            for at, point in zip(x, line.points, strict=True):
                style.error_bar(axes, at, point.mean, point.se, color)
            for of_layer in _layers(line):
                axes.plot(x, of_layer, color=color, linewidth=0.6, alpha=FAINT)
    scales = [point.scale for line in panel.lines for point in line.points]
    style.log2_scale_axis(axes, scales, scale_name)
    axes.set_ylabel(PANELS[panel.metric])
    if all(point.mean > 0 for line in panel.lines for point in line.points) and panel.is_power:
        style.log_losses(axes)
    elif panel.metric == ENTROPY:
        axes.set_ylim(0, 1.05)
    elif panel.metric == MARGIN:  # negative where a balancing rule chose against the logits
        axes.axhline(0, color=INK, linewidth=0.8, alpha=FAINT)
    else:
        axes.set_ylim(bottom=0)
    exponents = [
        f"{line.parameterization}: exponent {with_interval(line.exponent, line.exponent_low, line.exponent_high)}"
        for line in panel.lines
        if line.when == "end" and line.exponent is not None
    ]
    if exponents:
        axes.set_title("\n".join(exponents), fontsize=style.SMALL)


def _layers(line: RouterLine) -> list[tuple[float, ...]]:
    """Return the values of each layer over the scales; none if layers differ in number."""
    if len({len(point.layers) for point in line.points}) != 1:
        return []
    return list(zip(*(point.layers for point in line.points), strict=True))


ROUTERS = HPFigure(
    name="routers",
    question="Do routers keep learning, and do they stay undecided, as the model grows?",
    infos=lambda given: {
        axis: routers_info(given.analysis.found("routers"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw_routers,
    judged_only=True,
)
