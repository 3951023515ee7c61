"""Measured: the losses of one shape as arrays, and which of its cells tell where the optimum is.

Array letters: K HP values ascending, S seeds, N fitted cells, which are some of the K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hpxfer.intervals import Bools, Floats, Ints, lowest_of
from hpxfer.verdict.loss_grid import ShapeLosses
from hpxfer.verdict.thresholds import BLOWN_NATS, BLOWN_RATIO, LOCAL_OCTAVES, LOCAL_POINTS, WALL_RATIO

TINY = 1e-9  # octaves
LINKED = 3  # cells that show the level of a seed
LEVELS = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 1e2, 1e4])  # the variance of a level over that of a trial
LOG_CHANCES = np.log([1.0, 1.0, 1.0, 1.0, 1.0, 0.01, 1e-4])  # beforehand
LEAST = 1e-12  # nats squared: below it is rounding


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """The losses of one shape, K planned HP values by S seeds: NaN without a result, +inf where one diverged.

    What `odd_runs` says of them holds here: runs that stand apart are NaN, dead ones +inf. `noise_ratio` follows from
    all shapes (`noise`).
    """

    row: ShapeLosses
    x_K: Floats  # log2 of the HP values
    loss_KS: Floats
    given_KS: Floats  # as they were measured
    doubt_K: Floats  # the variance of the mean of a cell whose seeds disagree, beyond that of noise; else 0
    noise_ratio: float = 1.0  # the variance of a trial at this shape over that of the pool
    log_levels_R: Floats = field(default_factory=lambda: LOG_CHANCES)  # of the variance of the levels of seeds

    @property
    def apart_KS(self) -> Bools:
        """True for runs that are left out because they stand apart from the other seeds of their cell."""
        return np.asarray(np.isnan(self.loss_KS) & ~np.isnan(self.given_KS))

    @property
    def dead_KS(self) -> Bools:
        """True for runs that ended with a number, but count as diverged."""
        return np.asarray(np.isinf(self.loss_KS) & np.isfinite(self.given_KS))

    @cached_property
    def num_K(self) -> Ints:
        """The number of finite losses of each cell."""
        return np.asarray(np.isfinite(self.loss_KS).sum(axis=1))

    @cached_property
    def diverges_K(self) -> Bools:
        """True where at least half of the seeds diverged."""
        num_K = np.isinf(self.loss_KS).sum(axis=1)
        return np.asarray((num_K > 0) & (num_K >= self.num_K))

    @cached_property
    def stable_K(self) -> Bools:
        """True where there is a result and no seed diverged."""
        return np.asarray((self.num_K > 0) & ~np.isinf(self.loss_KS).any(axis=1))

    @cached_property
    def linked_S(self) -> Bools:
        """True for seeds in enough stable cells that their level shows. That of others is part of the noise."""
        known_KS = np.isfinite(self.loss_KS) & self.stable_K[:, None]
        return np.asarray(known_KS.sum(axis=0) >= min(LINKED, int(self.stable_K.sum())))

    @cached_property
    def mean_K(self) -> Floats:
        """The mean loss of each cell, NaN without a finite one. Where cells have other seeds, see `balanced`."""
        return self._means[0]

    @cached_property
    def share_K(self) -> Floats:
        """The variance of each mean over that of a trial: 1 over the number of its trials, or more by `balanced`."""
        return self._means[1]

    @cached_property
    def _means(self) -> tuple[Floats, Floats]:
        finite_KS = np.isfinite(self.loss_KS)
        sums_K = np.where(finite_KS, self.loss_KS, 0.0).sum(axis=1)
        mean_K = np.where(self.num_K > 0, sums_K / np.maximum(self.num_K, 1), np.nan)
        share_K = 1 / np.maximum(self.num_K, 1)
        if (cells := self.unbalanced) is not None:
            start = float(mean_K[cells].min())
            mean_N, share_N, _ = balanced(self.loss_KS[cells] - start, self.linked_S)
            chance_R = np.exp(self.log_levels_R - self.log_levels_R.max())
            mean_K[cells] = start + chance_R @ mean_N / chance_R.sum()
            share_K[cells] = chance_R @ share_N / chance_R.sum()
        return mean_K, share_K

    @property
    def agreeing_K(self) -> Bools:
        """True for stable cells whose seeds agree."""
        return np.asarray(self.stable_K & (self.doubt_K == 0))

    @cached_property
    def unbalanced(self) -> Ints | None:
        """The cells whose seeds agree, if levels of seeds bear on their differences; else None."""
        cells = np.flatnonzero(self.agreeing_K)
        known_CS = np.isfinite(self.loss_KS[cells])[:, self.linked_S]
        same = bool((known_CS.any(axis=0) == known_CS.all(axis=0)).all()) if cells.size else True
        return None if same else cells

    @cached_property
    def lowest(self) -> int | None:
        """The cell with the lowest mean of those where no seed diverged; of equal ones, that in the middle.

        A cell whose seeds disagree is the lowest one only if there is no other.
        """
        if not self.stable_K.any():
            return None
        among_K = self.agreeing_K if self.agreeing_K.any() else self.stable_K
        return lowest_of(np.where(among_K, self.mean_K, np.inf).tolist(), self.x_K.tolist())

    @cached_property
    def has_result_K(self) -> Bools:
        """True where a seed finished or diverged."""
        return np.asarray(~np.isnan(self.loss_KS).all(axis=1)) if self.loss_KS.size else np.zeros(len(self.x_K), bool)

    @cached_property
    def _ends(self) -> tuple[int | None, int | None]:
        """The closest cell below the lowest one that is unstable, and above."""
        assert self.lowest is not None
        bad = np.flatnonzero(np.isinf(self.loss_KS).any(axis=1))
        below, above = bad[bad < self.lowest], bad[bad > self.lowest]
        return (int(below[-1]) if below.size else None), (int(above[0]) if above.size else None)

    @cached_property
    def _blown_K(self) -> Bools:
        """True where training ended with a number that is no loss of a basin, e.g. 500 nats."""
        assert self.lowest is not None
        distance_K = np.abs(self.x_K - self.x_K[self.lowest])
        rise_K = np.where(self.stable_K, self.mean_K - self.mean_K[self.lowest], 0.0)
        bend_K = rise_K / np.maximum(distance_K, TINY) ** 2
        near_K = self.stable_K & (distance_K > 0) & (rise_K <= BLOWN_NATS)
        usual = float(np.median(bend_K[near_K])) if near_K.any() else 0.0
        return np.asarray((rise_K > BLOWN_NATS) & (bend_K > BLOWN_RATIO * usual))

    @cached_property
    def cells_N(self) -> Ints:
        """The cells that are fitted: the stable ones around the lowest one, within LOCAL_OCTAVES or LOCAL_POINTS of it.

        Further out the loss says little about the minimum, and real basins have walls.
        """
        if self.lowest is None:
            return np.zeros(0, dtype=np.int64)
        start, stop = self._ends
        cells = np.flatnonzero(self.stable_K & ~self._blown_K)
        cells = cells[(cells > (-1 if start is None else start)) & (cells < (len(self.x_K) if stop is None else stop))]
        at = int(np.flatnonzero(cells == self.lowest)[0])
        keep = np.abs(self.x_K[cells] - self.x_K[self.lowest]) <= LOCAL_OCTAVES + TINY
        keep[max(at - LOCAL_POINTS, 0) : at + LOCAL_POINTS + 1] = True
        kept: Ints = cells[keep]
        return kept

    @property
    def diverges_beside(self) -> bool:
        """Whether the optimum is bounded by an HP at which training diverges."""
        return self.lowest is not None and any(end is not None for end in self._ends)

    @property
    def low(self) -> float:
        """The lowest log2 HP at which the optimum may be: one that diverges. Without one, -inf."""
        return -math.inf if self._ends[0] is None else float(self.x_K[self._ends[0]])

    @property
    def high(self) -> float:
        return math.inf if self._ends[1] is None else float(self.x_K[self._ends[1]])

    @cached_property
    def wall(self) -> int | None:
        """The first fitted cell above the lowest one that rises far more steeply than the others: perhaps a wall.

        Behind it training has blown up, but ended with a number. Then the cell says nothing about the minimum but that
        it lies below. None if there is no such cell.
        """
        if not self.cells_N.size:
            return None
        x, y = self.x_K[self.cells_N], self.mean_K[self.cells_N]
        at = int(np.argmin(y))
        bend = (y - y[at]) / np.maximum(np.abs(x - x[at]), TINY) ** 2
        for k in range(max(at + 1, LOCAL_POINTS), x.size):
            others = np.concatenate([bend[:at], bend[at + 1 : k]])
            if others.size and bend[k] > WALL_RATIO * float(np.median(others)):
                return k
        return None


def balanced(loss_CS: Floats, linked_S: Bools) -> tuple[Floats, Floats, Floats]:
    """Return means (R, C), their variances over that of a trial (R, C), and log likelihoods (R,), by `LEVELS`.

    NaN is missing, and every cell has a loss. Seeds that are not `linked_S` have no level. The sum of the variances of
    two means is at least that of their difference.
    """
    known_CS = np.isfinite(loss_CS)
    y_CS = np.where(known_CS, loss_CS, 0.0)
    of_CS = (known_CS & linked_S).astype(float)
    num_S, sums_S = of_CS.sum(axis=0), (of_CS * y_CS).sum(axis=0)
    weight_RS = LEVELS[:, None] / (1 + LEVELS[:, None] * num_S)
    # The inverse of 1 + level Z Z^T takes a share of the sum of each seed away (Sherman and Morrison 1950).
    information_RCC = np.diag(known_CS.sum(axis=1)) - (of_CS * weight_RS[:, None, :]) @ of_CS.T
    right_RC = y_CS.sum(axis=1) - (weight_RS * sums_S) @ of_CS.T
    covariance_RCC = np.linalg.inv(information_RCC)
    mean_RC = (covariance_RCC @ right_RC[:, :, None])[:, :, 0]
    squares_R = (y_CS**2).sum() - weight_RS @ sums_S**2 - (right_RC * mean_RC).sum(axis=1)
    free = int(known_CS.sum()) - len(loss_CS)
    volume_R = np.log1p(LEVELS[:, None] * num_S).sum(axis=1) + np.linalg.slogdet(information_RCC)[1]
    log_R = -0.5 * volume_R - 0.5 * free * np.log(np.maximum(squares_R, LEAST))
    own_RC = np.diagonal(covariance_RCC, axis1=1, axis2=2)
    difference_RCC = own_RC[:, :, None] + own_RC[:, None, :] - 2 * covariance_RCC
    alone = len(loss_CS) == 1
    return mean_RC, own_RC if alone else difference_RCC.max(axis=2) / 2, log_R
