"""How far seeds can move a fit: draws of the fitted optima, from how seeds differ, pooled over shapes.

Whole curves over the HP are drawn, not single cells, because the effect of a seed is smooth in log2 HP. On the
published quickstart a seed that is lucky at one learning rate is lucky at the next, so each seed has its own optimum.
Residuals of single cells, taken as independent, would make the intervals too short. The curve of a seed is its losses
minus the means of the cells, along the cells of a basin.

Two or three seeds per shape are too few to resample: such a bootstrap covers 48-75%. So curves are pooled over all
shapes and parameterizations, aligned at the center of the basin, and each is scaled to the variance of one seed. A
draw is the sum of all curves with independent normal weights (the multiplier bootstrap; Wu 1986, Ann. Statist. 14,
1261), which is a normal draw with their covariance.

That covariance is estimated with few degrees of freedom. Draws for intervals are therefore divided by sqrt(chi^2/df),
which gives Student's t for anything linear. An optimum rests on the curve of its own shape and, through the cubic part,
on the curves of all others. These are several independent sums of squares, which add degrees of freedom (Satterthwaite
1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from hpxfer.verdict.local_fit import Ints, LocalFit
from hpxfer.verdict.loss_grid import Bools, Floats, LossGrid
from hpxfer.verdict.thresholds import CONFIDENCE, MISFIT_CHANCE, NUM_DRAWS

TINY = 1e-9  # octaves
RANDOM_SEED = 20260121  # fixed, so that equal losses give equal intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedNoise:
    """The covariance of one seed's losses along a basin, root.T @ root. O counts cells from the center of the basin."""

    root_OO: Floats  # nats
    num_offsets: int  # to either side: O = 2 * num_offsets + 1
    freedom: int  # degrees of freedom of the covariance: seeds minus one, summed over the distinct shapes


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """The optima that other seeds would have given, in log2 HP: B draws of F fitted shapes."""

    normal_BF: Floats  # normal draws, which standard errors are read from
    change_BF: Floats  # the change of the loss at the fitted optimum in the same draws, nats
    interval_2F: Floats  # the ends of the 95% intervals, from draws with Student's tails
    # True where the 95% interval has no end, because the losses do not bend by more than seeds differ. If this holds at
    # half of the shapes, it counts for all: the bend depends on the loss, so that the other half shows it by chance.
    flat_F: Bools
    freedom: int
    misfit: float  # the factor by which draws are widened if cells scatter about the fit more than seeds do, else 1

    @cached_property
    def se_F(self) -> Floats:
        """The standard error of each optimum, from the middle 68% of the draws."""
        low_F, high_F = np.quantile(self.normal_BF, stats.norm.cdf([-1, 1]), axis=0)
        return np.asarray((high_F - low_F) / 2)


def pool_noise(fits: Sequence[tuple[LossGrid, LocalFit]]) -> SeedNoise | None:
    """Return the noise of seeds, pooled over all fitted shapes; None if no shape has two seeds.

    Several grids may share the trials of the base. These count once.
    """
    num_offsets = max((grid.x_K.size for grid, _ in fits), default=0)
    curves, freedom, seen = [], 0, set()
    for grid, fit in fits:
        centers_F = center_cells(grid, fit)
        for f, i in enumerate(fit.rows_F):
            key = (grid.x_K.tobytes(), grid.loss_IKS[i].tobytes())
            residual_KS = grid.residual_IKS[i].copy()
            residual_KS[~np.isin(np.arange(grid.x_K.size), fit.cell_N[fit.shape_N == f])] = np.nan
            known_S = ~np.isnan(residual_KS).all(axis=0)
            if key in seen or known_S.sum() < 2:
                continue
            seen.add(key)
            curve_SO = np.full((int(known_S.sum()), 2 * num_offsets + 1), np.nan)
            start = num_offsets - int(centers_F[f])
            curve_SO[:, start : start + grid.x_K.size] = residual_KS[:, known_S].T
            curves.append(curve_SO)
            freedom += int(known_S.sum()) - 1
    if not curves:
        return None
    return SeedNoise(root_OO=_root(np.concatenate(curves)), num_offsets=num_offsets, freedom=freedom)


def _root(curve_JO: Floats) -> Floats:
    """Return a square root of the covariance of curves. Offsets without a curve get the mean variance of the others."""
    known_JO = ~np.isnan(curve_JO)
    count_O = known_JO.sum(0)
    filled_JO = np.where(known_JO, curve_JO, 0.0) / np.sqrt(np.maximum(count_O, 1))
    variance_O = (filled_JO**2).sum(0)
    spare = math.sqrt(float(variance_O[count_O > 0].mean()))
    triangle = np.linalg.qr(filled_JO, mode="r")
    return np.concatenate([triangle, np.diag(np.where(count_O > 0, 0.0, spare))])


def center_cells(grid: LossGrid, fit: LocalFit) -> Ints:
    """Return the cell closest to each fitted shape's center, (F,)."""
    return np.asarray(np.argmin(np.abs(grid.x_K - fit.center_F[:, None]), axis=1))


def draw_optima(grid: LossGrid, fit: LocalFit, noise: SeedNoise, num_draws: int = NUM_DRAWS) -> Draws:
    """Return draws of the optima of a fit under the noise of seeds."""
    rng = np.random.default_rng(RANDOM_SEED)
    offset_N = fit.cell_N - center_cells(grid, fit)[fit.shape_N] + noise.num_offsets
    moved_BN = np.empty((num_draws, fit.shape_N.size))
    for f in range(fit.rows_F.size):
        of = fit.shape_N == f
        moved_BN[:, of] = rng.standard_normal((num_draws, len(noise.root_OO))) @ noise.root_OO[:, offset_N[of]]
    moved_BN /= np.sqrt(fit.weight_N)
    change_BP = moved_BN @ fit.solve_PN.T
    tail_B = np.sqrt(noise.freedom / rng.chisquare(noise.freedom, num_draws))
    misfit = _misfit(fit, moved_BN - change_BP @ fit.design_NP.T, tail_B)
    change_BP *= misfit
    freedom_F = noise.freedom * _independent(fit, noise.root_OO, offset_N)
    tail_BF = np.sqrt(freedom_F / rng.chisquare(freedom_F, (num_draws, freedom_F.size)))
    student_BF = fit.optima(change_BP, tail_BF)
    interval_2F: Floats = np.quantile(student_BF, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    open_F = (interval_2F[0] <= fit.ends_2F[0] + TINY) & (interval_2F[1] >= fit.ends_2F[1] - TINY)
    return Draws(
        normal_BF=fit.optima(change_BP, np.ones_like(tail_BF)),
        change_BF=fit.change_at_optima(change_BP),
        interval_2F=interval_2F,
        flat_F=open_F | (2 * open_F.sum() >= open_F.size),
        freedom=noise.freedom,
        misfit=misfit,
    )


def _independent(fit: LocalFit, root_OO: Floats, offset_N: Ints) -> Floats:
    """Return how many independent sums of squares the variance of each optimum rests on, (F,): tr(V)^2 / tr(V^2).

    V holds the covariances, under the noise of one seed, of the contributions of each shape's curve to an optimum.
    """
    num = fit.rows_F.size
    weight_FN = fit.slope_of_optima() @ (fit.solve_PN / np.sqrt(fit.weight_N))
    out = np.ones(num)
    for f in range(num):
        parts = [root_OO[:, offset_N[fit.shape_N == m]] @ weight_FN[f, fit.shape_N == m] for m in range(num)]
        gram = np.array(parts) @ np.array(parts).T
        if (whole := float(np.trace(gram))) > 0:
            out[f] = whole**2 / float((gram**2).sum())
    return out


def _misfit(fit: LocalFit, residual_BN: Floats, tail_B: Floats) -> float:
    """Return the ratio of the scatter about the fit to the scatter of seeds, if chance does not explain it, else 1."""
    found = float(fit.weight_N @ fit.residual_N**2)
    drawn_B = residual_BN**2 @ fit.weight_N
    return scatter_ratio(found, drawn_B, tail_B)


def scatter_ratio(found: float, drawn_B: Floats, tail_B: Floats) -> float:
    """Return sqrt(found / mean of draws) if fewer than MISFIT_CHANCE of the draws, with their tails, reach `found`.

    Otherwise return 1: the scatter is within chance.
    """
    usual = float(drawn_B.mean())
    if usual <= 0 or found <= usual or float(np.mean(drawn_B * tail_B**2 >= found)) >= MISFIT_CHANCE:
        return 1.0
    return math.sqrt(found / usual)
