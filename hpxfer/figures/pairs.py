"""Pairs of HPs: every pair that was scanned together at the base shape, as a heatmap with the numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hpxfer.analysis.surface import Surface
from hpxfer.figures import style
from hpxfer.figures.cells import cell_handles
from hpxfer.figures.surface import MIN_RISE, NOTHING, RISE_QUANTILE, cell_rises, draw_heat
from hpxfer.figures.words import control_last, why

MOST_CELLS_WITH_NUMBERS = 10  # a side: beyond, numbers do not fit


@dataclass(frozen=True, kw_only=True)
class PairsInfo:
    """The measured losses of all pairs at the base, of one parameterization."""

    title: str
    parameterization: str
    top_nats: float
    panels: tuple[Surface, ...]
    caption: str = (
        "Mean loss over seeds above the best cell of the panel, in nats, at the base shape; all other HPs at their "
        "base values. A cross: a seed diverged."
    )

    def table(self) -> pd.DataFrame:
        """Return the cells drawn, a row each."""
        rows = [
            (one.parameterization, one.shape, one.first, one.second, c.log2_first, c.log2_second, c.loss, rise)
            for one in self.panels
            for c, rise in zip(one.cells, cell_rises(one), strict=True)
        ]
        columns = ["parameterization", "shape", "first", "second", "log2_first", "log2_second"]
        return pd.DataFrame(rows, columns=[*columns, "loss_nats", "rise_nats"])


def pairs_info(found: Sequence[Surface], parameterization: str) -> PairsInfo | str:
    """Return what the heatmaps of one parameterization show, or why there are none."""
    of_one = [one for one in found if one.parameterization == parameterization and one.is_base]
    kept = {(one.first, one.second): one for one in of_one if any(cell.loss is not None for cell in one.cells)}
    if not kept:
        return why((one.why_not for one in of_one), NOTHING)
    panels = tuple(kept[pair] for pair in sorted(kept))
    rises = [rise for one in panels for rise in cell_rises(one) if rise is not None]
    best = [
        f"{one.first} 2^{cell.log2_first:.3g} with {one.second} 2^{cell.log2_second:.3g}"
        for one in panels
        for cell in [min((c for c in one.cells if c.loss is not None), key=lambda c: c.loss or 0.0)]
    ]
    return PairsInfo(
        title=f"{parameterization} at the base is best at {'; '.join(best[:3])}",
        parameterization=parameterization,
        top_nats=max(float(np.quantile(rises, RISE_QUANTILE)), MIN_RISE),
        panels=panels,
    )


def pair_names(found: Sequence[Surface]) -> tuple[str, ...]:
    """Return the parameterizations with cells at the base, the control last."""
    return tuple(sorted({one.parameterization for one in found if one.is_base and one.cells}, key=control_last))


def draw_pairs(info: PairsInfo) -> Figure:
    """Return the figure: a panel a pair."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.2, foot=0.6)
        for axes, one in zip(grid, info.panels, strict=True):
            sides = [len({getattr(c, name) for c in one.cells}) for name in ("log2_first", "log2_second")]
            draw_heat(axes, one, info.top_nats, numbers=max(sides) <= MOST_CELLS_WITH_NUMBERS)
            axes.set_title(f"{one.first} and {one.second}")
            axes.set_xlabel(f"log2 {one.first}")
            axes.set_ylabel(f"log2 {one.second}")
        diverged = any(cell.loss is None for one in info.panels for cell in one.cells)
        handles = cell_handles(info.top_nats, star=None, diverged=diverged, missing=False)
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure
