"""Routers against the scale: entropy, load, updates, gradient, logits and choice, one color per parameterization."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.routers import (
    ABSOLUTE,
    BY_NOW,
    CHANGED,
    ENTROPY,
    GRADIENT,
    LOAD,
    LOGITS,
    MARGIN,
    METRICS,
    MOVED,
    RELATIVE,
    SPREAD,
    UPDATE,
    change_of,
)
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw, key
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import each, rows_of, why_no_rows, with_interval
from hpxfer.host import CONTROL

NOTHING = "no trial has a curve of its router"
MOST_TITLED, TITLE_CHARACTERS = 3, 44  # the arms whose exponents stand above a panel, and the length of a line
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
# An absolute size says the same as one in stds at init, and is drawn where a router starts at zero.
IN_PLACE_OF = {UPDATE: RELATIVE, ABSOLUTE: MOVED}
EQUAL = 1e-6  # of a value: numbers that differ by less are equal
DRAWN = ("start", "end")
POWERS = {metric.name for metric in METRICS if metric.is_power}
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


def routers_block(found: Found, axis: str, control: str | None = CONTROL) -> Block | str:
    """Return what the figure of one axis shows, or why there is none.

    Its frame has all quantities, also those without a panel, and single layers as rows of their own.
    """
    rows = rows_of(found, axis, control)
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    scale, by = rows["scale_name"].iloc[0], ["parameterization", "quantity"]
    has = set(zip(*(rows[name] for name in by), strict=True))
    instead = [(name, IN_PLACE_OF.get(quantity)) in has for name, quantity in zip(*(rows[n] for n in by), strict=True)]
    drawn = rows[rows["quantity"].isin(PANELS) & rows["when"].isin(DRAWN) & ~np.array(instead)]
    panels = _panels(drawn)
    if not panels:
        return NOTHING
    # Single layers are drawn where all shapes have as many.
    num_layers = drawn.groupby([*by, "when", "scale"])["layer"].transform("count")
    alike = num_layers.groupby([drawn[name] for name in (*by, "when")]).transform("nunique") == 1
    drawn = drawn[drawn["layer"].isna() | alike]
    looks = style.marks(list(dict.fromkeys(rows["parameterization"])), control)
    chart = Chart(
        x="scale",
        x_log2=True,
        lines=LINES,
        color="parameterization",
        panel="quantity",
        panels=panels,
        looks=looks,
        titles={},
        finish=lambda axes, quantity, rows: _finish(axes, quantity, rows, scale),
        keys=(key("at the first step", linestyle="--"),),
    )
    return Block(
        title=change_of(rows) or f"Routers along {axis}",
        caption="Routers at the HP transferred from the base, as means over seeds and layers with two standard errors. "
        "Solid: the last logged step. Dashed: the first step, before any update. Thin: single layers at the end. "
        "Entropy 1: all M experts are equally likely; 0: one expert gets everything. The RMS of an update, and of the "
        "distance from the start, is in units of the std that the table draws the router with at that scale; where a "
        "router starts at zero it is absolute. Nothing is drawn at zero on a log axis, and what is zero or equal "
        "everywhere has no panel. Numbers above a panel are exponents of the scale at the end, with 95% "
        "intervals; of more than three arms they are in the CSV alone.",
        frame=rows,
        drawn=drawn,
        charts=(chart,),
    )


def _panels(drawn: pd.DataFrame) -> list[str]:
    """Return the quantities that have a panel: none whose numbers are all equal, or those of the panel before."""
    rows = drawn.assign(layer=drawn["layer"].fillna(-1))
    value_of = rows.set_index(["parameterization", "when", "scale", "layer"]).groupby("quantity")["value"]
    panels: list[str] = []
    last: pd.Series | None = None
    for quantity in PANELS:
        if quantity not in value_of.groups:
            continue
        of = value_of.get_group(quantity).sort_index()
        if len(of) > 1 and np.ptp(of) == 0:
            continue
        if last is None or not of.index.equals(last.index) or not np.allclose(of, last, rtol=EQUAL, atol=0):
            panels.append(quantity)
        last = of
    return panels


def _finish(axes: Axes, metric: str, rows: pd.DataFrame, scale: str) -> None:
    style.log2_scale_axis(axes, rows["scale"].to_list(), scale)
    axes.set_ylabel(PANELS[metric])
    means = rows[rows["layer"].isna()]
    at_end = means[means["when"] == "end"]
    if metric in POWERS and len(at_end) and (at_end["value"] > 0).all():  # a router that starts at zero has no log
        style.log_losses(axes)
    elif metric == ENTROPY:
        axes.set_ylim(0, 1.05)
    elif metric == MARGIN:  # negative where a balancing rule chose against the logits
        axes.axhline(0, color=INK, linewidth=0.8, alpha=FAINT)
    else:
        axes.set_ylim(bottom=0)
    ends = at_end[at_end["exponent"].notna()].drop_duplicates("parameterization")
    if 0 < len(ends) <= MOST_TITLED:
        exponents = [
            f"{row.parameterization}: exponent {with_interval(row.exponent, row.exponent_low, row.exponent_high)}"
            for row in each(ends)
        ]
        axes.set_title("\n".join(style.wrapped(text, TITLE_CHARACTERS) for text in exponents), fontsize=style.SMALL)


ROUTERS = HPFigure(
    name="routers",
    question="Do routers keep learning, and do they stay undecided, as the model grows?",
    infos=lambda given: {
        axis: routers_block(given.analysis.found("routers"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
