"""Two HPs at once: the optimum of a quadratic surface in both logs, and how much one's optimum depends on the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hpxfer.analysis.thresholds import CONFIDENCE

COEFFICIENTS = 6


@dataclass(frozen=True, kw_only=True)
class Surface:
    """loss = a + b.u + u' H u / 2 over u = (log2 of the first HP, log2 of the second), fitted by least squares.

    `interaction` is the octaves by which the first HP's optimum moves per octave of the second, -H12 / H11: 0 if they
    may be tuned apart. Errors are None without degrees of freedom.
    """

    log2_values: tuple[float, float] | None  # the lowest point; None if there is none, or if it is off the grid
    loss: float | None  # nats, there
    curvatures: tuple[float, float]  # nats per octave squared, as in `Optimum`: H11 / 2, H22 / 2
    interaction: float | None  # None if the loss does not bend along the first HP
    interaction_se: float | None
    interaction_low: float | None  # 95%
    interaction_high: float | None
    residual_nats: float | None  # standard deviation about the surface
    num_cells: int
    none_because: str | None


def fit_surface(first: Sequence[float], second: Sequence[float], losses: Sequence[float]) -> Surface | None:
    """Return the surface through the losses of cells or trials at (first, second) > 0; None if they do not fix one.

    A loss that is not finite is censored. Six cells are needed, not all on two lines.
    """
    kept = [(a, b, loss) for a, b, loss in zip(first, second, losses, strict=True) if math.isfinite(loss)]
    if len(kept) < COEFFICIENTS:
        return None
    x, y, z = (np.array([row[i] for row in kept], dtype=float) for i in range(3))
    x, y = np.log2(x), np.log2(y)
    x0, y0 = x.mean(), y.mean()
    u, v = x - x0, y - y0
    design = np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=1)
    if np.linalg.matrix_rank(design) < COEFFICIENTS:
        return None
    found = np.linalg.lstsq(design, z, rcond=None)[0]
    left = z - design @ found
    freedom = len(z) - COEFFICIENTS
    variance = float(left @ left) / freedom if freedom else None
    _, p, q, c, m, d = (float(one) for one in found)
    at, why = _lowest(p, q, c, m, d, (u.min(), u.max()), (v.min(), v.max()))
    slope = -m / (2 * c) if c > 0 else None
    se = None
    if slope is not None and variance is not None:
        by = np.array([0, 0, 0, m / (2 * c * c), -1 / (2 * c), 0])
        se = math.sqrt(max(variance * float(by @ np.linalg.inv(design.T @ design) @ by), 0.0))
    half = None if se is None else se * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    here = None if at is None else np.array([1, at[0], at[1], at[0] ** 2, at[0] * at[1], at[1] ** 2])
    return Surface(
        log2_values=None if at is None else (at[0] + float(x0), at[1] + float(y0)),
        loss=None if here is None else float(here @ found),
        curvatures=(c, d),
        interaction=slope,
        interaction_se=se,
        interaction_low=None if slope is None or half is None else slope - half,
        interaction_high=None if slope is None or half is None else slope + half,
        residual_nats=None if variance is None else math.sqrt(variance),
        num_cells=len(kept),
        none_because=why,
    )


def _lowest(
    p: float, q: float, c: float, m: float, d: float, ends_u: tuple[float, float], ends_v: tuple[float, float]
) -> tuple[tuple[float, float] | None, str | None]:
    """Return the lowest point of p u + q v + c u^2 + m u v + d v^2 within the grid, or why there is none."""
    bend = 4 * c * d - m * m
    if c <= 0 or bend <= 0:
        return None, "the surface has no lowest point"
    u, v = (m * q - 2 * d * p) / bend, (m * p - 2 * c * q) / bend
    if not (ends_u[0] <= u <= ends_u[1] and ends_v[0] <= v <= ends_v[1]):
        return None, "the lowest point is off the grid"
    return (u, v), None
