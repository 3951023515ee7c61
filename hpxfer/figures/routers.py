"""Routers against the scale: entropy, load, updates, gradient, logits and choice, one color per parameterization."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

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
from hpxfer.figures.chart import Block, Chart, Line, draw, key
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
DRAWN = ("start", "end")
LINES = (
    Line(
        y="value",
        where={"when": "start", "layer": None},
        marker="arm",
        look={"linestyle": "--", "linewidth": 1.1, "markersize": 3},
    ),
    Line(y="value", where={"when": "end", "layer": None}, marker="arm", se="se", look={"markersize": 6}),
    Line(y="value", where={"when": "end"}, by="layer", look={"linewidth": 0.6, "alpha": FAINT}),
)


def routers_block(found: Sequence[RouterLine], axis: str, control: str | None = CONTROL) -> Block | str:
    """Return what the figure of one axis shows, or why there is none.

    Its frame has all quantities, also those without a panel, and single layers as rows of their own.
    """
    of_axis = along(found, axis, control)
    lines = [line for line in of_axis if line.points]
    if not lines:
        return why_none((line.why_not for line in of_axis), NOTHING)
    scale = lines[0].scale_name
    columns = ["axis", "parameterization", "scale", "quantity", "unit", "when", "step", "layer", "value"]
    columns += ["se", "seeds", "diverged_seeds", "exponent", "exponent_low", "exponent_high"]
    frame = pd.DataFrame([row for line in lines for row in _rows(line)], columns=columns)
    has = {(line.parameterization, line.metric) for line in lines}
    kept = [line for line in lines if line.metric in PANELS and line.when in DRAWN]
    kept = [line for line in kept if (line.parameterization, IN_PLACE_OF.get(line.metric)) not in has]
    if not kept:
        return NOTHING
    exponents = {
        metric: [
            f"{line.parameterization}: exponent {with_interval(line.exponent, line.exponent_low, line.exponent_high)}"
            for line in kept
            if (line.metric, line.when) == (metric, "end") and line.exponent is not None
        ]
        for metric in PANELS
    }
    looks = style.marks(list(dict.fromkeys(line.parameterization for line in lines)), control)
    chart = Chart(
        x="scale",
        x_log2=True,
        lines=LINES,
        color="parameterization",
        panel="quantity",
        panels=[metric for metric in PANELS if any(line.metric == metric for line in kept)],
        looks=looks,
        titles={},
        finish=lambda axes, metric, rows: _finish(axes, metric, rows, scale, exponents[metric]),
        keys=(key("at the first step", linestyle="--"),),
    )
    return Block(
        title=_title(lines, axis),
        caption="Routers at the HP transferred from the base, as means over seeds and layers with two standard errors. "
        "Solid: the last logged step. Dashed: the first step, before any update. Thin: single layers at the end. "
        "Entropy 1: all M experts are equally likely; 0: one expert gets everything. The RMS of an update, and of the "
        "distance from the start, is in units of the std that the table draws the router with at that scale; where a "
        "router starts at zero it is absolute. Numbers above a panel are exponents of the scale at the end, with 95% "
        "intervals.",
        frame=frame,
        headings={name: scale if name == "scale" else name for name in columns},
        drawn=pd.DataFrame([row for line in kept for row in _rows(line, alike=True)], columns=columns),
        charts=(chart,),
    )


def _rows(line: RouterLine, *, alike: bool = False) -> Iterator[tuple[object, ...]]:
    """Yield a row per shape, and one per layer of it; with `alike` only where all shapes have as many layers."""
    layered = not alike or len({len(point.layers) for point in line.points}) == 1
    for point in line.points:
        where = (line.axis, line.parameterization, point.scale, line.metric, line.unit, line.when, point.step)
        rest = (point.num_seeds, point.num_diverged, line.exponent, line.exponent_low, line.exponent_high)
        yield (*where, None, point.mean, point.se, *rest)
        for layer, value in enumerate(point.layers if layered else ()):
            yield (*where, layer, value, None, *rest)


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


def _finish(axes: Axes, metric: str, rows: pd.DataFrame, scale: str, exponents: Sequence[str]) -> None:
    style.log2_scale_axis(axes, rows["scale"].to_list(), scale)
    axes.set_ylabel(PANELS[metric])
    means = rows[rows["layer"].isna()]
    if (means["value"] > 0).all() and means["exponent"].notna().any():
        style.log_losses(axes)
    elif metric == ENTROPY:
        axes.set_ylim(0, 1.05)
    elif metric == MARGIN:  # negative where a balancing rule chose against the logits
        axes.axhline(0, color=INK, linewidth=0.8, alpha=FAINT)
    else:
        axes.set_ylim(bottom=0)
    if exponents:
        axes.set_title("\n".join(exponents), fontsize=style.SMALL)


ROUTERS = HPFigure(
    name="routers",
    question="Do routers keep learning, and do they stay undecided, as the model grows?",
    infos=lambda given: {
        axis: routers_block(given.analysis.found("routers"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
