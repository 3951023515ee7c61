"""Pairs of HPs: each pair that was scanned together at the base shape, as a heatmap with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from hpxfer.analysis.statistics.surface import Surface
from hpxfer.figures import style
from hpxfer.figures.heatmap import cell_handles, top_rise
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.stability import NOTHING, cell_rises, draw_surface_cells
from hpxfer.figures.text import control_last, octaves_of, why_none
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

MOST_CELLS_WITH_NUMBERS = 10  # per side: in more cells the numbers do not fit

FEW_PANELS = 4  # more stand three in a row


@dataclass(frozen=True, kw_only=True)
class PairsInfo:
    """The measured losses of all pairs of HPs at the base, of one parameterization."""

    title: str
    top_nats: float
    panels: tuple[Surface, ...]
    judged: JudgedLoss = NATS

    @property
    def caption(self) -> str:
        """How to read the figure."""
        return (
            f"Mean loss over seeds above the best cell of the panel, in {self.judged.unit}, at the base shape. "
            "All other HPs stay at their base values, or in a sweep of the base alone at those of the best point. A "
            "cross means that a seed diverged."
        )

    def table(self) -> pd.DataFrame:
        """Return one row per cell."""
        rows = [
            (pair.parameterization, pair.shape, pair.first, pair.second, c.log2_first, c.log2_second, c.loss, rise)
            for pair in self.panels
            for c, rise in zip(pair.cells, cell_rises(pair), strict=True)
        ]
        columns = ["parameterization", "shape", "first", "second", "log2_first", "log2_second"]
        return pd.DataFrame(rows, columns=[*columns, "loss_nats", "rise_nats"]).rename(columns=self.judged.column)


def pairs_info(found: Sequence[Surface], parameterization: str, judged: JudgedLoss = NATS) -> PairsInfo | str:
    """Return what the heatmaps of one parameterization show, or why there are none."""
    at_base = [surface for surface in found if surface.parameterization == parameterization and surface.is_base]
    kept = {
        (surface.first, surface.second): surface
        for surface in at_base
        if any(cell.loss is not None for cell in surface.cells)
    }
    if not kept:
        return why_none((surface.why_not for surface in at_base), NOTHING)
    panels = tuple(kept[pair] for pair in sorted(kept))
    best = [
        f"{pair.first} 2^{cell.log2_first:.3g} with {pair.second} 2^{cell.log2_second:.3g}"
        for pair in panels
        for cell in [min((c for c in pair.cells if c.loss is not None), key=lambda c: c.loss or 0.0)]
    ]
    return PairsInfo(
        title=f"{parameterization} at the base is best at {'; '.join(best[:3])}",
        top_nats=top_rise(rise for pair in panels for rise in cell_rises(pair) if rise is not None),
        panels=panels,
        judged=judged,
    )


def pair_names(found: Sequence[Surface], control: str | None = CONTROL) -> tuple[str, ...]:
    """Return the parameterizations with cells at the base, the control last."""
    names = {surface.parameterization for surface in found if surface.is_base and surface.cells}
    return tuple(sorted(names, key=lambda name: control_last(name, control)))


def draw_pairs(info: PairsInfo) -> Figure:
    """Return the figure: one panel per pair of HPs."""
    with style.look():
        columns, height = (2, 3.2) if len(info.panels) <= FEW_PANELS else (3, 2.6)
        figure, grid = style.panels(info.title, len(info.panels), columns=columns, height=height, foot=0.6)
        for axes, pair in zip(grid, info.panels, strict=True):
            sides = [len({getattr(c, name) for c in pair.cells}) for name in ("log2_first", "log2_second")]
            draw_surface_cells(axes, pair, info.top_nats, info.judged, numbers=max(sides) <= MOST_CELLS_WITH_NUMBERS)
            if len(info.panels) <= FEW_PANELS:  # more are too narrow for it, and the axes name both
                axes.set_title(f"{pair.first} and {pair.second}")
            axes.set_xlabel(octaves_of(pair.first))
            axes.set_ylabel(octaves_of(pair.second))
        diverged = any(cell.loss is None for pair in info.panels for cell in pair.cells)
        handles = cell_handles(info.top_nats, star=None, diverged=diverged, missing=False, judged=info.judged)
        style.legend_below(figure, handles, columns=4)
    return figure


PAIRS = SweepFigure(
    name="pairs",
    question="Which values of two HPs are best together at the base?",
    infos=lambda results, analysis: {
        name: pairs_info(analysis.found("surfaces"), name, analysis.judged)
        for name in pair_names(analysis.found("surfaces"), analysis.control)
    },
    draw=draw_pairs,
)
