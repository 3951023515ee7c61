"""Two HPs at once: losses over both, the fitted surface at each shape, and every pair at the base with numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.surface import Surface
from hpxfer.figures import style
from hpxfer.figures.cells import Cells, top_rise
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.text import control_last, listed, octaves_of, why_none, with_interval
from hpxfer.results import Results
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

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
    found: Sequence[Surface], first: str, second: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of a pair of HPs shows, or why there is none. The base's surfaces come first."""
    of_pair = [surface for surface in found if (surface.first, surface.second) == (first, second)]
    kept = [surface for surface in of_pair if _is_measured(surface)]
    if not kept:
        return why_none((surface.why_not for surface in of_pair), NO_SURFACE)
    kept.sort(
        key=lambda surface: (
            not surface.is_base,
            _sizes(surface.shape),
            control_last(surface.parameterization, control),
        )
    )
    shown = kept[:MOST_PANELS]
    tilts = [
        _interaction(surface)
        for surface in shown
        if surface.interaction is not None and surface.is_base == shown[0].is_base
    ]
    rows = [
        (*(surface.parameterization, surface.shape, x, y, loss), *(surface.at(x, y), rise, i))
        for i, surface in enumerate(shown)
        for x, y, loss, rise in cells_of(surface)
    ]
    x, y = f"log2_{first}", f"log2_{second}"
    columns = ["parameterization", "shape", x, y, "loss_nats", "fitted_nats", "rise", "panel"]
    drawn = pd.DataFrame(rows, columns=columns).astype({"rise": float})
    chart = Cells(
        x=x,
        y=y,
        rise="rise",
        panel="panel",
        titles={i: style.wrapped(_title(surface), 46) for i, surface in enumerate(shown)},
        star="lowest point",
        stars={i: [surface.log2_values] for i, surface in enumerate(shown) if surface.log2_values is not None},
        keys=(FITTED,),
        top=top_rise(rise for surface in kept for *_, rise in cells_of(surface) if rise is not None),
        judged=judged,
        finish=lambda axes, i, _: _finish_surface(axes, shown[i]),
    )
    left_out = len(kept) - MOST_PANELS
    return Block(
        title=f"Octaves that the best {first} moves per octave of {second}: {listed(tilts, 2) or 'unknown'}",
        caption="Color: mean loss over seeds above the best cell. Lines: the fitted surface, at "
        f"{', '.join(f'{share:.2%}' for share in CONTOURS)} above its lowest point. A tilt means that the two HPs have "
        "to be tuned together." + (f" {left_out} more surfaces are not shown." if left_out > 0 else ""),
        frame=drawn.drop(columns=["rise", "panel"]),
        drawn=drawn,
        charts=(chart,),
        judged=judged,
        height=3.2,
    )


def _is_measured(surface: Surface) -> bool:
    return any(cell.loss is not None for cell in surface.cells)


def cells_of(surface: Surface) -> Iterator[tuple[float, float, float | None, float | None]]:
    """Yield log2 of both HPs, the loss, and its rise over the best cell. Both are None where a seed diverged."""
    best = min((cell.loss for cell in surface.cells if cell.loss is not None), default=0.0)
    for cell in surface.cells:
        yield cell.log2_first, cell.log2_second, cell.loss, None if cell.loss is None else cell.loss - best


def _sizes(shape: str) -> list[int]:
    """Return the numbers in a shape's name, so that w64 comes before w128."""
    return [int(number) for number in re.findall(r"\d+", shape)]


def _title(surface: Surface) -> str:
    return surface.shape + (" (base)" if surface.is_base else "") + f", {surface.parameterization}"


def _interaction(surface: Surface) -> str:
    assert surface.interaction is not None, "only surfaces with an interaction are named"
    where = "the base" if surface.is_base else surface.shape
    tilt = with_interval(surface.interaction, surface.interaction_low, surface.interaction_high)
    return f"{surface.parameterization} at {where} {tilt}"


def _finish_surface(axes: Axes, surface: Surface) -> None:
    if surface.loss is not None:
        x, y = (np.linspace(*limits, GRID) for limits in (axes.get_xlim(), axes.get_ylim()))
        fitted = np.array([[surface.at(float(a), float(b)) or 0.0 for a in x] for b in y])
        levels = [surface.loss + share * abs(surface.loss) for share in CONTOURS]
        for color, width in (("#000000", 2.6), ("#ffffff", 1.2)):
            axes.contour(x, y, fitted, levels=levels, colors=[color], linewidths=width)
    style.set_axes(axes, octaves_of(surface.first), octaves_of(surface.second))


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = analysis.found("surfaces")
    pairs = dict.fromkeys((surface.first, surface.second) for surface in found)
    if not pairs:
        return {"": "the sweep scans fewer than two HPs"}
    return {
        f"{first}-{second}": surface_block(found, first, second, analysis.judged, analysis.control)
        for first, second in pairs
    }


SURFACE = SweepFigure(name="surface", question="Do two HPs have to be tuned together?", infos=_infos, draw=draw)


def pairs_block(found: Sequence[Surface], parameterization: str, judged: JudgedLoss = NATS) -> Block | str:
    """Return what the heatmaps of all pairs at the base show, of one parameterization, or why there are none."""
    at_base = [surface for surface in found if surface.parameterization == parameterization and surface.is_base]
    kept = {(surface.first, surface.second): surface for surface in at_base if _is_measured(surface)}
    if not kept:
        return why_none((surface.why_not for surface in at_base), NOTHING)
    pairs = [kept[pair] for pair in sorted(kept)]
    best = [
        f"{pair.first} 2^{cell.log2_first:.3g} with {pair.second} 2^{cell.log2_second:.3g}"
        for pair in pairs
        for cell in [min((c for c in pair.cells if c.loss is not None), key=lambda c: c.loss or 0.0)]
    ]
    rows = [
        (pair.parameterization, pair.shape, pair.first, pair.second, *cell, _number(pair, cell[-1]), i)
        for i, pair in enumerate(pairs)
        for cell in cells_of(pair)
    ]
    columns = ["parameterization", "shape", "first", "second", "log2_first", "log2_second", "loss_nats", "rise_nats"]
    drawn = pd.DataFrame(rows, columns=[*columns, "text", "panel"]).astype({"rise_nats": float})
    few = len(pairs) <= FEW_PAIRS  # more are too narrow for a title, and the axes name both
    chart = Cells(
        x="log2_first",
        y="log2_second",
        rise="rise_nats",
        text="text",
        panel="panel",
        titles={i: f"{pair.first} and {pair.second}" for i, pair in enumerate(pairs) if few},
        judged=judged,
        finish=lambda axes, i, _: style.set_axes(axes, octaves_of(pairs[i].first), octaves_of(pairs[i].second)),
    )
    return Block(
        title=f"{parameterization} at the base is best at {'; '.join(best[:3])}",
        caption=f"Mean loss over seeds above the best cell of the panel, in {judged.unit}, at the base shape. All "
        "other HPs stay at their base values, or in a sweep of the base alone at those of the best point. A cross "
        "means that a seed diverged.",
        frame=drawn.drop(columns=["text", "panel"]),
        drawn=drawn,
        charts=(chart,),
        judged=judged,
        columns=2 if few else 3,
        height=3.2 if few else 2.6,
    )


def _number(pair: Surface, rise: float | None) -> str:
    """Return what is written into a cell: its rise, where there is room for it."""
    sides = [len({getattr(cell, name) for cell in pair.cells}) for name in ("log2_first", "log2_second")]
    if rise is None or max(sides) > MOST_CELLS_WITH_NUMBERS:
        return ""
    return f"{rise:.2g}" if rise else "best"


def pair_names(found: Sequence[Surface], control: str | None = CONTROL) -> tuple[str, ...]:
    """Return the parameterizations with cells at the base, the control last."""
    names = {surface.parameterization for surface in found if surface.is_base and surface.cells}
    return tuple(sorted(names, key=lambda name: control_last(name, control)))


PAIRS = SweepFigure(
    name="pairs",
    question="Which values of two HPs are best together at the base?",
    infos=lambda results, analysis: {
        name: pairs_block(analysis.found("surfaces"), name, analysis.judged)
        for name in pair_names(analysis.found("surfaces"), analysis.control)
    },
    draw=draw,
)
