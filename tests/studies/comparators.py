"""What a researcher would do instead: the lowest cell, a parabola in log2 HP, and a bootstrap over seeds with a spline.

Each method gives an `Answer` on the same losses as the report, with 95% intervals where it has any. All three hold what
they estimate against the limits of the truth (`world_truth`). The lowest cell and the parabola have no doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from loss_arrays import log2_values, losses
from scipy import stats
from scipy.interpolate import Akima1DInterpolator
from verdict_counts import Answer, Interval, Method
from world_basins import Floats
from world_truth import LIMIT, OCTAVES

from hpxfer.verdict.loss_grid import LossGrid

FIT_CELLS = 5  # a parabola is fitted to so many cells around the lowest one
DRAWS = 200
SPLINE_STEPS = 32  # points per octave
SURE = 0.95  # the share of draws with which the bootstrap decides


def argmin(grid: LossGrid) -> Answer:
    """Return the answer from the cell with the lowest mean loss at each shape."""
    mean_IK = _means(grid)
    if not np.isfinite(mean_IK).any(axis=1).all():
        return _undecided(grid)
    lowest_I, best_I = np.nanargmin(mean_IK, axis=1), np.nanmin(mean_IK, axis=1)
    base = int(lowest_I[_base(grid)])
    if np.isnan(mean_IK[:, base]).any():
        return _undecided(grid)
    regret = float(np.max(mean_IK[:, base] / best_I - 1))
    return _decided(grid, base, regret, float(np.ptp(log2_values(grid)[lowest_I])))


def parabola(grid: LossGrid) -> Answer:
    """Return the answer from one parabola per shape, fitted to all seeds of the cells around the lowest one.

    The intervals follow from the scatter about the parabolas. Without a lowest point at some shape it is undecided. A
    lowest point beyond the grid is taken at the edge.
    """
    fits = [_fit(grid, i) for i in range(len(grid.rows))]
    found = [fit for fit in fits if fit is not None]
    if len(found) < len(fits):
        return _undecided(grid)
    x_K = log2_values(grid)
    at_I = np.array([np.clip(fit.optimum, x_K[0], x_K[-1]) for fit in found])
    base = int(np.argmin(np.abs(x_K - at_I[_base(grid)])))
    regret = max(float(fit(x_K[base]) / fit(at) - 1) for fit, at in zip(found, at_I, strict=True))
    answer = _decided(grid, base, regret, float(np.ptp(at_I)))
    if any(fit.se is None for fit in found):
        return answer
    optimum_I, se_I = np.array([(fit.optimum, fit.se) for fit in found]).T
    t = float(stats.t.ppf(0.975, min(fit.freedom for fit in found)))
    slope_I = _slope_weights(len(found))
    ends_I = np.eye(len(found))[-1] - np.eye(len(found))[0]
    drift, move = (
        _around(float(weight_I @ optimum_I), t * float(np.hypot.reduce(weight_I * se_I)))
        for weight_I in (slope_I, ends_I)
    )
    return Answer(
        value=answer.value,
        verdict=answer.verdict,
        optima=tuple(_around(fit.optimum, t * fit.se) for fit in found if fit.se is not None),
        drift=drift,
        move=move,
    )


def bootstrap(grid: LossGrid) -> Answer:
    """Return the answer from Akima splines through the means of resampled seeds; with one seed it is undecided.

    A draw says that the HP transfers, or that it drifts. The verdict is what 95% of the draws say.
    """
    mean_IK, num_seeds = _means(grid), losses(grid).shape[2]
    finite_IK = np.isfinite(mean_IK)
    base_row = _base(grid)
    if num_seeds < 2 or (finite_IK.sum(axis=1) < 2).any():
        return _undecided(grid)
    base = int(np.nanargmin(mean_IK[base_row]))
    if np.isnan(mean_IK[:, base]).any():
        return _undecided(grid)
    rng = np.random.default_rng(0)
    count_BS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=DRAWS).astype(float)
    optimum_IB, over_IB = np.array(
        [_splines(log2_values(grid), losses(grid)[i], mean_IK[i], base, count_BS) for i in range(len(grid.rows))]
    ).transpose(1, 0, 2)
    stays_B = (over_IB.max(axis=0) <= LIMIT) & (np.ptp(optimum_IB, axis=0) < OCTAVES)
    share = float(np.mean(stays_B))
    slope_I = _slope_weights(len(grid.rows))
    return Answer(
        value=grid.values[base],
        verdict="transfers" if share >= SURE else "drifts" if share <= 1 - SURE else "undecided",
        optima=tuple(_quantiles(optimum_B) for optimum_B in optimum_IB),
        drift=_quantiles(slope_I @ optimum_IB),
        move=_quantiles(optimum_IB[-1] - optimum_IB[0]),
    )


OTHERS: dict[str, Method] = {"lowest cell": argmin, "parabola": parabola, "bootstrap and spline": bootstrap}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parabola:
    """The parabola of one shape, in powers of (log2 HP - `middle`)."""

    coefficients: Floats
    middle: float
    se: float | None  # of the optimum
    freedom: int

    def __call__(self, x: float) -> float:
        return float(np.polyval(self.coefficients, x - self.middle))

    @property
    def optimum(self) -> float:
        return self.middle - float(self.coefficients[1] / (2 * self.coefficients[0]))


def _fit(grid: LossGrid, i: int) -> _Parabola | None:
    """Return the parabola of one shape; None if there is none that has a lowest point."""
    mean_K = _means(grid)[i]
    finite = np.flatnonzero(np.isfinite(mean_K))
    if finite.size < 3:
        return None
    lowest = int(finite[np.argmin(mean_K[finite])])
    x_K = log2_values(grid)
    near = np.sort(finite[np.argsort(np.abs(x_K[finite] - x_K[lowest]), kind="stable")[:FIT_CELLS]])
    loss_KS = losses(grid)[i, near]
    known_KS = ~np.isnan(loss_KS)
    middle = float(x_K[near].mean())
    x_N, y_N = np.repeat(x_K[near] - middle, known_KS.sum(axis=1)), loss_KS[known_KS]
    design = np.vander(x_N, 3)
    coefficients = np.linalg.lstsq(design, y_N, rcond=None)[0]
    freedom = len(y_N) - 3
    a, b, _ = coefficients
    if a <= 0:
        return None
    se = None
    if freedom > 0:
        variance = float(np.sum((y_N - design @ coefficients) ** 2)) / freedom
        gradient = np.array([b / (2 * a**2), -1 / (2 * a), 0.0])
        se = float(np.sqrt(variance * gradient @ np.linalg.inv(design.T @ design) @ gradient))
    return _Parabola(coefficients=coefficients, middle=middle, se=se, freedom=freedom)


def _splines(x_K: Floats, loss_KS: Floats, mean_K: Floats, base: int, count_BS: Floats) -> tuple[Floats, Floats]:
    """Return each draw's optimum, and its loss at the HP of cell `base` over the lowest one, minus 1; inf if diverged.

    A cell without a result in a draw has its mean over all seeds.
    """
    kept = np.isfinite(mean_K)
    known_KS = ~np.isnan(loss_KS[kept])
    weight_KB = known_KS.astype(float) @ count_BS.T
    sums_KB = np.where(known_KS, loss_KS[kept], 0.0) @ count_BS.T
    y_KB = np.where(weight_KB > 0, sums_KB / np.maximum(weight_KB, 1), mean_K[kept][:, None])
    x = x_K[kept]
    fine_N = np.linspace(x[0], x[-1], round((x[-1] - x[0]) * SPLINE_STEPS) + 1)
    fine_NB = Akima1DInterpolator(x, y_KB)(fine_N) if len(x) > 2 else _straight(fine_N, x, y_KB)
    lowest_B = fine_NB.min(axis=0)
    at_base_B = y_KB[int(np.sum(kept[:base]))] if kept[base] else np.full(len(count_BS), np.inf)
    return fine_N[np.argmin(fine_NB, axis=0)], at_base_B / lowest_B - 1


def _straight(fine_N: Floats, x_K: Floats, y_KB: Floats) -> Floats:
    share_N1 = ((fine_N - x_K[0]) / (x_K[-1] - x_K[0]))[:, None]
    return (1 - share_N1) * y_KB[0] + share_N1 * y_KB[-1]


def _means(grid: LossGrid) -> Floats:
    """Return the mean loss of each cell (I, K) over the seeds it has: +inf where one diverged, NaN without any."""
    known_IKS = ~np.isnan(losses(grid))
    sums_IK = np.where(known_IKS, losses(grid), 0.0).sum(axis=2)
    return np.where(known_IKS.any(axis=2), sums_IK / np.maximum(known_IKS.sum(axis=2), 1), np.nan)


def _base(grid: LossGrid) -> int:
    return next(i for i, row in enumerate(grid.rows) if row.is_base)


def _decided(grid: LossGrid, base: int, regret: float, octaves: float) -> Answer:
    """Return the verdict of a method without doubt: regret as a share of the loss, and how far its optima differ."""
    stays = regret <= LIMIT and octaves < OCTAVES
    verdict = "transfers" if stays else "drifts"
    return Answer(value=grid.values[base], verdict=verdict, optima=(None,) * len(grid.rows))


def _undecided(grid: LossGrid) -> Answer:
    return Answer(value=None, verdict="undecided", optima=(None,) * len(grid.rows))


def _slope_weights(num_shapes: int) -> Floats:
    """Return the weights whose product with the optima is their least-squares slope per doubling."""
    away_I = np.arange(float(num_shapes)) - (num_shapes - 1) / 2
    return away_I / float(away_I @ away_I)


def _around(at: float, half: float) -> Interval:
    return at - half, at + half


def _quantiles(draws_B: Floats) -> Interval:
    low, high = np.quantile(draws_B, (0.025, 0.975))
    return float(low), float(high)
