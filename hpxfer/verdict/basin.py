"""The drawn basin as a curve, its width, and the largest HP at which training is stable."""

from __future__ import annotations

import math

import numpy as np

from hpxfer.verdict.estimate import Estimates
from hpxfer.verdict.loss_grid import Floats, ShapeLosses

STEPS = 129  # the points at which a basin is evaluated for its width
POINTS = 33  # of a curve
BESIDE = 0.5  # octaves by which a curve goes beyond the fitted cells


def basin_width(estimates: Estimates, i: int, share: float) -> float | None:
    """Return over how many octaves the loss of row `i` exceeds its minimum by at most `share` of it.

    The basin is the mean of the draws. None without draws, and if the basin is wider than the cells fitted: a width
    is never extrapolated.
    """
    if not estimates.known(i):
        return None
    x = _cells(estimates, i)
    fine = np.linspace(x[0], x[-1], STEPS)
    loss = estimates.curve(i, fine)
    least = float(loss.min())
    inside = np.flatnonzero(loss <= least + share * abs(least))
    if inside[0] == 0 or inside[-1] == STEPS - 1:
        return None
    return float(fine[inside[-1]] - fine[inside[0]])


def curve_of(estimates: Estimates, i: int) -> tuple[tuple[float, float], ...]:
    """Return (log2 HP, loss) of the mean of the drawn basins of row `i`, around the fitted cells."""
    if not estimates.known(i):
        return ()
    measured, x = estimates.measured(i), _cells(estimates, i)
    low, high = max(x[0] - BESIDE, measured.low), min(x[-1] + BESIDE, measured.high)
    fine = np.linspace(low, high, POINTS)
    return tuple(zip(fine.tolist(), estimates.curve(i, fine).tolist(), strict=True))


def _cells(estimates: Estimates, i: int) -> Floats:
    measured = estimates.measured(i)
    return measured.x_K[measured.cells_N]


def stability_edge(row: ShapeLosses) -> float | None:
    """Return log2 of the largest HP up to which no seed diverged, itself included.

    None if no seed diverged at any HP; -inf if one diverged already at the smallest. HPs without a result are skipped.
    """
    edge = -math.inf
    for cell in row.cells:
        if len(cell.finite) < len(cell.losses):
            return edge
        if cell.losses:
            edge = cell.log2
    return None
