"""The width of a fitted basin, and the largest HP at which training is stable."""

from __future__ import annotations

import math

import numpy as np

from hpxfer.verdict.estimate import Fitted
from hpxfer.verdict.loss_grid import ShapeLosses

STEPS = 1024  # the points at which a fitted basin is evaluated


def basin_width(fitted: Fitted, i: int, share: float) -> float | None:
    """Return over how many octaves the fitted loss of shape `i` exceeds its minimum by at most `share` of it.

    None if the shape was not fitted, and if the basin is wider than the cells fitted: a width is never extrapolated.
    """
    if fitted.fit is None or i not in fitted.at:
        return None
    f = fitted.at[i]
    x = np.linspace(fitted.fit.low_F[f], fitted.fit.high_F[f], STEPS)
    loss = fitted.fit.loss(f, x)
    inside = np.flatnonzero(loss <= loss.min() + share * abs(loss.min()))
    if inside[0] == 0 or inside[-1] == STEPS - 1:
        return None
    return float(x[inside[-1]] - x[inside[0]])


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
