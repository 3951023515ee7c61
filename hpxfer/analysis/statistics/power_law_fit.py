"""The fit of a saturating power law, floor + height * 2^(-exponent (x - middle)), and its draws.

For a given exponent the law is linear in floor and height. The fit therefore searches the exponent alone (variable
projection), for all draws of a bootstrap at once. Neither floor nor height may be negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.posterior import RANDOM_SEED

# log2 of the exponents that are searched, evenly spaced: 12 per factor of two.
LOG2_EXPONENTS = np.linspace(-8.0, 2.0, 121)
FINE = 0.1  # of a step between them: the second, finer search is over this distance
LAW_DRAWS = 1000
# If the scatter about a law has a lower chance than this under the noise of seeds, all errors grow by the ratio of the
# two, as the Particle Data Group scales them (RPP 2024, 5.2.2).
SCATTER_CHANCE = 0.05
COEFFICIENTS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerFit:
    """Fits to the data (row 0) and to B draws of it, over x = log2 of what scales."""

    floor_R: Floats  # R = 1 + B
    height_R: Floats  # at the middle
    exponent_R: Floats
    middle: float
    residual_N: Floats  # data minus fit
    widened: float  # the factor by which errors grew, as y scatters about the law beyond chance; else 1
    noise: float | None  # of one y, from the scatter, if no errors are given; None without a fourth point
    freedom: int  # degrees of freedom of the final errors
    at_end: bool  # the exponent is at an end of the range searched, so that there is no such law

    def loss(self, x: float) -> Floats:
        """Return the loss of each fit at `x`, (R,)."""
        return np.asarray(self.floor_R + self.height_R * 2.0 ** (-self.exponent_R * (x - self.middle)))


def fit_power(x: Floats, y: Floats, se: Floats | None, freedom: int) -> PowerFit:
    """Return the law through (x, y) and its draws.

    `se` are the errors of y, with `freedom` degrees of freedom. Draws are normal with Student's tails. If y scatters
    about the law beyond chance, they grow by the ratio, as everywhere in this package. Without `se`, draws are as wide
    as y scatters, with N - 3 degrees of freedom. Three points without `se` have no draws.
    """
    middle = float(x.mean())
    weight = np.ones_like(y) if se is None else 1 / np.maximum(se, 1e-12) ** 2
    first = _search(x - middle, y[None], weight)
    fit = (first[0] + first[1] * 2.0 ** (-first[2] * (x - middle)[:, None]).T)[0]
    residual = y - fit
    rng = np.random.default_rng(RANDOM_SEED)
    spare = x.size - COEFFICIENTS
    if se is None:
        if spare < 1:
            return _power(first, first, middle, residual, freedom=0)
        scatter, freedom = math.sqrt(float(residual @ residual) / spare), spare
        noise = np.full_like(y, scatter)
    else:
        noise, scatter = se, None
    ratio = 1.0
    normal_BN = rng.standard_normal((LAW_DRAWS, x.size)) * noise
    tail_B = np.sqrt(freedom / rng.chisquare(freedom, LAW_DRAWS))
    drawn = _search(x - middle, fit + normal_BN * tail_B[:, None], weight)
    if se is not None and spare > 0:
        fitted_BN = drawn[0][:, None] + drawn[1][:, None] * 2.0 ** (-drawn[2][:, None] * (x - middle))
        squares_B = ((fit + normal_BN * tail_B[:, None] - fitted_BN) ** 2) @ weight / tail_B**2
        ratio = scatter_ratio(float(weight @ residual**2), squares_B, tail_B)
        if ratio > 1:
            freedom = min(freedom, spare)
            tail_B = ratio * np.sqrt(freedom / rng.chisquare(freedom, LAW_DRAWS))
            drawn = _search(x - middle, fit + normal_BN * tail_B[:, None], weight)
    return _power(first, drawn, middle, residual, freedom=freedom, widened=ratio, noise=scatter)


def _power(
    first: tuple[Floats, Floats, Floats],
    drawn: tuple[Floats, Floats, Floats],
    middle: float,
    residual: Floats,
    *,
    freedom: int,
    widened: float = 1.0,
    noise: float | None = None,
) -> PowerFit:
    floor, height, exponent = (np.concatenate(pair) for pair in zip(first, drawn, strict=True))
    ends = 2.0 ** LOG2_EXPONENTS[[0, -1]]
    at_end = bool(height[0] <= 0 or exponent[0] <= ends[0] or exponent[0] >= ends[1])
    return PowerFit(
        floor_R=floor,
        height_R=height,
        exponent_R=exponent,
        middle=middle,
        residual_N=residual,
        widened=widened,
        noise=noise,
        freedom=freedom,
        at_end=at_end,
    )


def _search(u: Floats, y_RN: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return floor, height and exponent with the least weighted sum of squares, for every row of y."""
    squares = np.stack([_linear(u, y_RN, weight, 2.0**at)[2] for at in LOG2_EXPONENTS], axis=1)
    best = np.argmin(squares, axis=1)
    inner = np.clip(best, 1, LOG2_EXPONENTS.size - 2)
    rows = np.arange(best.size)
    before, here, after = (squares[rows, inner + step] for step in (-1, 0, 1))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    step = LOG2_EXPONENTS[1] - LOG2_EXPONENTS[0]
    moved = np.where(best == inner, LOG2_EXPONENTS[inner] + np.clip(shift, -0.5, 0.5) * step, LOG2_EXPONENTS[best])
    fine = FINE * step  # the parabola over a whole step is off by more than small errors are, so search once more
    before, here, after = (_linear(u, y_RN, weight, 2.0 ** (moved + by)[:, None])[2] for by in (-fine, 0.0, fine))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    exponent = 2.0 ** np.where(best == inner, moved + np.clip(shift, -1, 1) * fine, moved)
    floor, height, _ = _linear(u, y_RN, weight, exponent[:, None])
    return floor, height, exponent


def _linear(u: Floats, y_RN: Floats, weight: Floats, exponent: float | Floats) -> tuple[Floats, Floats, Floats]:
    """Return floor and height of each row at given exponents, neither below 0, and the weighted sum of squares."""
    falls = np.broadcast_to(2.0 ** (-exponent * u), y_RN.shape)
    total = weight.sum()
    mean_f, mean_y = falls @ weight / total, y_RN @ weight / total
    df, dy = falls - mean_f[:, None], y_RN - mean_y[:, None]
    height = np.maximum((df * dy) @ weight / np.maximum((df * df) @ weight, 1e-300), 0.0)
    floor = mean_y - height * mean_f
    alone = (falls * y_RN) @ weight / ((falls * falls) @ weight)
    height, floor = np.where(floor < 0, np.maximum(alone, 0.0), height), np.maximum(floor, 0.0)
    residual_RN = y_RN - floor[:, None] - height[:, None] * falls
    return floor, height, (residual_RN**2) @ weight


def scatter_ratio(found: float, drawn_B: Floats, tail_B: Floats) -> float:
    """Return sqrt(found / mean of draws) if fewer than SCATTER_CHANCE of the draws, with their tails, reach `found`.

    Otherwise return 1: the scatter is within chance.
    """
    usual = float(drawn_B.mean())
    if usual <= 0 or found <= usual or float(np.mean(drawn_B * tail_B**2 >= found)) >= SCATTER_CHANCE:
        return 1.0
    return math.sqrt(found / usual)
