"""Facts about a fitted basin beside its optimum: how wide it is, and how far it is to the divergence edge."""

from __future__ import annotations

import math

import numpy as np

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.estimate import Fitted

STEPS = 1024  # points at which a fitted basin is looked at


def basin_width(one: Fitted, i: int, share: float) -> float | None:
    """Return over how many octaves the fitted loss is within `share` of its minimum at a shape.

    None if nothing was fitted, or if the basin is wider than the cells that were: a width is never extrapolated.
    """
    if one.fit is None or i not in one.at:
        return None
    f = one.at[i]
    x = np.linspace(one.fit.low_F[f], one.fit.high_F[f], STEPS)
    loss = one.fit.loss(f, x)
    inside = np.flatnonzero(loss <= loss.min() + share * abs(loss.min()))
    if inside[0] == 0 or inside[-1] == STEPS - 1:
        return None
    return float(x[inside[-1]] - x[inside[0]])


def stability_edge(basin: Basin) -> float | None:
    """Return log2 of the largest HP below which, it included, no seed diverged; None if none diverged, -inf if all did.

    An HP without a result is passed over.
    """
    edge = -math.inf
    for point in basin.points:
        if len(point.finite) < len(point.losses):
            return edge
        if point.losses:
            edge = point.log2
    return None
