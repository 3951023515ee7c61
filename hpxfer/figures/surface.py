"""Two HPs at once: losses over both, the fitted surface at each shape, and every pair at the base with numbers."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from hpxfer.analysis import Analysis, Found
from hpxfer.analysis.statistics.surface import quadratic
from hpxfer.figures import style
from hpxfer.figures.cells import Cells, top_rise
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.text import control_last, each, listed, octaves_of, with_interval
from hpxfer.host import CONTROL, NATS, JudgedLoss
from hpxfer.results import Results

NOTHING = "no trial has a result"
NO_SURFACE = "no two HPs are scanned together (product: true)"
MOST_PANELS = 6  # per figure of surfaces
CONTOURS = (0.0025, 0.01, 0.03)  # rises over the lowest point, as fractions of the lowest loss
GRID = 31  # points per side that contours are drawn through
HALO = [patheffects.Stroke(linewidth=2.6, foreground="#000000"), patheffects.Normal()]
FITTED = Line2D([], [], color="#ffffff", linewidth=1.2, path_effects=HALO, label="fitted surface")
MOST_CELLS_WITH_NUMBERS = 10  # per side: in more cells the numbers do not fit
FEW_PAIRS = 4  # more stand three in a row


def surface_block(
    found: Found, cells: Found, first: str, second: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of a pair of HPs shows, or why there is none. The base's surfaces come first."""
    fits, rows = (of[(of["first"] == first) & (of["second"] == second)] for of in (found.frame, cells.frame))
    if rows["loss_nats"].isna().all():
        return why_no_pair(found, first, second, NO_SURFACE)
    by = ["parameterization", "shape"]
    shapes = rows[rows["loss_nats"].notna()].drop_duplicates(by)
    order = [(not row.is_base, _sizes(row.shape), control_last(row.parameterization, control)) for row in each(shapes)]
    shapes = shapes.iloc[sorted(range(len(order)), key=order.__getitem__)]
    shown = list(each(shapes))[:MOST_PANELS]
    number = {(row.parameterization, row.shape): i for i, row in enumerate(shown)}
    tilts = [
        f"{fit.parameterization} at {'the base' if fit.is_base else fit.shape} "
        + with_interval(fit.interaction, fit.interaction_low, fit.interaction_high)
        for row in shown
        for fit in each(fits[(fits["parameterization"] == row.parameterization) & (fits["shape"] == row.shape)])
        if not pd.isna(fit.interaction) and fit.is_base == shown[0].is_base
    ]
    panel = [number.get(key, -1) for key in zip(rows["parameterization"], rows["shape"], strict=True)]
    drawn = rows.assign(panel=panel, rise_nats=rows["rise_nats"].astype(float))
    drawn = drawn[drawn["panel"] >= 0].sort_values("panel", kind="stable")
    lowest = fits[fits["lowest_log2_first"].notna()]
    stars = {
        number[row.parameterization, row.shape]: [(row.lowest_log2_first, row.lowest_log2_second)]
        for row in each(lowest)
        if (row.parameterization, row.shape) in number
    }
    chart = Cells(
        x="log2_first",
        y="log2_second",
        rise="rise_nats",
        panel="panel",
        titles={
            i: style.wrapped(f"{row.shape}{' (base)' if row.is_base else ''}, {row.parameterization}", 46)
            for i, row in enumerate(shown)
        },
        star="lowest point",
        stars=stars,
        keys=(FITTED,),
        top=top_rise(rows["rise_nats"].dropna()),
        judged=judged,
        finish=lambda axes, i, of: _finish_surface(axes, of, first, second, has_lowest=i in stars),
    )
    left_out = len(shapes) - MOST_PANELS
    return Block(
        title=f"Octaves that the best {first} moves per octave of {second}: {listed(tilts, 2) or 'unknown'}",
        caption="Color: mean loss over seeds above the best cell. Lines: the fitted surface, at "
        f"{', '.join(f'{share:.2%}' for share in CONTOURS)} above its lowest point. A tilt means that the two HPs have "
        "to be tuned together." + (f" {left_out} more surfaces are not shown." if left_out > 0 else ""),
        frame=drawn.drop(columns="panel"),
        drawn=drawn,
        charts=(chart,),
        judged=judged,
        height=3.2,
    )


def why_no_pair(found: Found, first: str, second: str, otherwise: str) -> str:
    """Return why there are no cells of a pair: each reason once, or `otherwise` without any."""
    return "; ".join(dict.fromkeys(why for of, why in found.unknown if f"{first} {second}" in of)) or otherwise


def _sizes(shape: str) -> list[int]:
    """Return the numbers in a shape's name, so that w64 comes before w128."""
    return [int(number) for number in re.findall(r"\d+", shape)]


def _finish_surface(axes: Axes, cells: pd.DataFrame, first: str, second: str, *, has_lowest: bool) -> None:
    """Draw the level lines of the fitted surface, a quadratic, through its values at the cells."""
    if has_lowest:
        at = [cells[name].to_numpy(float) for name in ("log2_first", "log2_second", "fitted_nats")]
        coefficients = np.linalg.lstsq(quadratic(*at[:2]), at[2], rcond=None)[0]
        x, y = np.meshgrid(*(np.linspace(*limits, GRID) for limits in (axes.get_xlim(), axes.get_ylim())))
        fitted = (quadratic(x.ravel(), y.ravel()) @ coefficients).reshape(x.shape)
        inside = _lowest(coefficients)
        levels = [inside + share * abs(inside) for share in CONTOURS]
        for color, width in (("#000000", 2.6), ("#ffffff", 1.2)):
            axes.contour(x, y, fitted, levels=levels, colors=[color], linewidths=width)
    style.set_axes(axes, octaves_of(first), octaves_of(second))


def _lowest(coefficients: NDArray[np.float64]) -> float:
    """Return the lowest value of a quadratic."""
    _, p, q, c, m, d = coefficients
    u, v = np.linalg.solve([[2 * c, m], [m, 2 * d]], [-p, -q])
    return float((quadratic(np.array([u]), np.array([v])) @ coefficients)[0])


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    pairs = list(combinations(results.spec.grid, 2))
    if not pairs:
        return {"": "the sweep scans fewer than two HPs"}
    found = analysis.found("surfaces"), analysis.found("pair_cells")
    return {
        f"{first}-{second}": surface_block(*found, first, second, analysis.judged, analysis.control)
        for first, second in pairs
    }


SURFACE = SweepFigure(name="surface", question="Do two HPs have to be tuned together?", infos=_infos, draw=draw)


def pairs_block(cells: Found, parameterization: str, judged: JudgedLoss = NATS) -> Block | str:
    """Return what the heatmaps of all pairs at the base show, of one parameterization, or why there are none."""
    at_base = cells.frame[(cells.frame["parameterization"] == parameterization) & cells.frame["is_base"].astype(bool)]
    pairs = {pair: of for pair, of in at_base.groupby(["first", "second"]) if of["loss_nats"].notna().any()}
    if not pairs:
        return NOTHING
    best = [
        f"{row.first} 2^{row.log2_first:.3g} with {row.second} 2^{row.log2_second:.3g}"
        for of in pairs.values()
        for row in each(of.loc[[of["loss_nats"].astype(float).idxmin()]])
    ]
    few = len(pairs) <= FEW_PAIRS  # more are too narrow for a title, and the axes name both
    drawn = pd.concat([of.assign(panel=i, text=_numbers(of)) for i, of in enumerate(pairs.values())])
    names = list(pairs)
    chart = Cells(
        x="log2_first",
        y="log2_second",
        rise="rise_nats",
        text="text",
        panel="panel",
        titles={i: f"{first} and {second}" for i, (first, second) in enumerate(names) if few},
        judged=judged,
        finish=lambda axes, i, _: style.set_axes(axes, *map(octaves_of, names[i])),
    )
    return Block(
        title=f"{parameterization} at the base is best at {'; '.join(best[:3])}",
        caption=f"Mean loss over seeds above the best cell of the panel, in {judged.unit}, at the base shape. All "
        "other HPs stay at their base values, or in a sweep of the base alone at those of the best point. A cross "
        "means that a seed diverged.",
        frame=drawn.drop(columns=["text", "panel"]),
        drawn=drawn.astype({"rise_nats": float}),
        charts=(chart,),
        judged=judged,
        columns=2 if few else 3,
        height=3.2 if few else 2.6,
    )


def _numbers(cells: pd.DataFrame) -> list[str]:
    """Return what is written into cells: their rise, where there is room for it."""
    if max(cells["log2_first"].nunique(), cells["log2_second"].nunique()) > MOST_CELLS_WITH_NUMBERS:
        return [""] * len(cells)
    return ["" if pd.isna(rise) else f"{rise:.2g}" if rise else "best" for rise in cells["rise_nats"]]


def pair_names(cells: Found, control: str | None = CONTROL) -> tuple[str, ...]:
    """Return the parameterizations with cells at the base, the control last."""
    names = set(cells.frame.loc[cells.frame["is_base"].astype(bool), "parameterization"])
    return tuple(sorted(names, key=lambda name: control_last(name, control)))


PAIRS = SweepFigure(
    name="pairs",
    question="Which values of two HPs are best together at the base?",
    infos=lambda results, analysis: {
        name: pairs_block(analysis.found("pair_cells"), name, analysis.judged)
        for name in pair_names(analysis.found("pair_cells"), analysis.control)
    },
    draw=draw,
)
