"""The cube of a finding: the losses of one parameterization along one axis as arrays.

Shape letters: I shapes by scale, K HP values ascending, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.thresholds import CLIFF_RATIO, MIN_POINTS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Rounds of the two-way means of cells and seeds; complete cells need one, a hole is filled to 1e-9 in these.
ROUNDS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Cube:
    """`loss_IKS` in nats over `x_K` = log2 HP: NaN is no result (also: not planned), +inf a diverged seed."""

    x_K: Floats
    doublings_I: Floats  # log2 scale
    loss_IKS: Floats

    @cached_property
    def num_seeds_IK(self) -> NDArray[np.int64]:
        """The seeds with a result, diverged ones included."""
        return np.asarray(np.sum(~np.isnan(self.loss_IKS), axis=2))

    @cached_property
    def unstable_IK(self) -> Bools:
        """True where a seed diverged: the mean loss there is +inf, whatever the other seeds say."""
        return np.asarray(np.isinf(self.loss_IKS).any(axis=2))

    @cached_property
    def diverges_IK(self) -> Bools:
        """True where at least half of the seeds diverged, so that the median is +inf."""
        lost_IK = np.isinf(self.loss_IKS).sum(axis=2)
        return np.asarray((lost_IK > 0) & (2 * lost_IK >= self.num_seeds_IK))

    @cached_property
    def stable_IK(self) -> Bools:
        return np.asarray((self.num_seeds_IK > 0) & ~self.unstable_IK)

    @cached_property
    def _two_way(self) -> tuple[Floats, Floats]:
        """The means of cells and the luck of seeds (zero on average) whose sums are closest to a basin's losses."""
        known_IKS = self.basin_IK[:, :, None] & ~np.isnan(self.loss_IKS)
        loss_IKS = np.where(known_IKS, self.loss_IKS, 0.0)
        per_cell_IK = np.maximum(known_IKS.sum(2), 1)
        per_seed_IS = np.maximum(known_IKS.sum(1), 1)
        mean_IK = loss_IKS.sum(2) / per_cell_IK
        luck_IS = np.zeros_like(loss_IKS[:, 0])
        whole = bool(np.all(known_IKS == known_IKS.any(2, keepdims=True) & known_IKS.any(1, keepdims=True)))
        for _ in range(1 if whole else ROUNDS):
            luck_IS = np.where(known_IKS, loss_IKS - mean_IK[:, :, None], 0.0).sum(1) / per_seed_IS
            has_IS = known_IKS.any(1)
            luck_IS -= np.where(has_IS, luck_IS.sum(1, keepdims=True) / np.maximum(has_IS.sum(1)[:, None], 1), 0.0)
            luck_IS = np.where(has_IS, luck_IS, 0.0)
            mean_IK = np.where(known_IKS, loss_IKS - luck_IS[:, None, :], 0.0).sum(2) / per_cell_IK
        return np.where(self.basin_IK, mean_IK, np.nan), luck_IS

    @property
    def mean_IK(self) -> Floats:
        """Mean losses of a basin's cells, in nats; a missing seed's luck is taken from its other cells. NaN beside."""
        return self._two_way[0]

    @cached_property
    def left_IKS(self) -> Floats:
        """What mean and luck leave of a seed's loss, grown to the variance of one seed; NaN where nothing is known."""
        mean_IK, luck_IS = self._two_way
        seeds_IK1 = self.num_seeds_IK[:, :, None]
        grow = np.sqrt(seeds_IK1 / np.maximum(seeds_IK1 - 1, 1))
        left_IKS: Floats = (self.loss_IKS - mean_IK[:, :, None] - luck_IS[:, None, :]) * grow
        return np.where(seeds_IK1 > 1, left_IKS, np.nan)

    @cached_property
    def raw_IK(self) -> Floats:
        """Mean losses of the stable cells, in nats, whichever seeds they have; NaN beside."""
        sums_IK = np.where(self.stable_IK, np.nansum(self.loss_IKS, axis=2), np.nan)
        return np.asarray(sums_IK / np.maximum(self.num_seeds_IK, 1))

    @cached_property
    def lowest_I(self) -> NDArray[np.intp]:
        """The stable cell of each shape with the lowest mean; the first where none is stable."""
        return np.asarray(np.argmin(np.where(self.stable_IK, self.raw_IK, np.inf), axis=1))

    @cached_property
    def cliffs_IK(self) -> Bools:
        """True for stable cells so far up that they can be no part of a basin: divergence that left a number."""
        if self.x_K.size < MIN_POINTS:
            return np.zeros_like(self.stable_IK)
        rise_IK = self.raw_IK - np.take_along_axis(self.raw_IK, self.lowest_I[:, None], axis=1)
        away_IK = np.abs(self.x_K - self.x_K[self.lowest_I][:, None])
        known_IK = self.stable_IK & (away_IK > 0)
        if not known_IK.any():
            return known_IK
        # Beside the lowest cell a rise is mostly noise: it counts as one of two steps.
        away_IK = np.maximum(away_IK, 2 * float(np.median(np.diff(self.x_K))))
        bend_IK = np.where(known_IK, rise_IK / away_IK**2, 0.0)
        return np.asarray(bend_IK > CLIFF_RATIO * float(np.median(bend_IK[known_IK])))

    @cached_property
    def basin_IK(self) -> Bools:
        """True for the stable cells around a shape's lowest one, up to an unstable one or a cliff on either side."""
        open_IK = self.unstable_IK | self.cliffs_IK
        out = np.zeros_like(self.stable_IK)
        for i, lowest in enumerate(self.lowest_I):
            below = np.flatnonzero(open_IK[i, :lowest])
            above = np.flatnonzero(open_IK[i, lowest:])
            start = below[-1] + 1 if below.size else 0
            stop = lowest + above[0] if above.size else self.x_K.size
            out[i, start:stop] = self.stable_IK[i, start:stop]
        return out


def cube(group: Sequence[Basin]) -> Cube:
    """Return the cube of the basins of one parameterization along one axis, in their order."""
    values = sorted({point.value for basin in group for point in basin.points})
    seeds = sorted({seed for basin in group for seed in basin.seeds})
    at_value = {value: k for k, value in enumerate(values)}
    at_seed = {seed: s for s, seed in enumerate(seeds)}
    loss_IKS = np.full((len(group), len(values), len(seeds)), np.nan)
    for i, basin in enumerate(group):
        for point in basin.points:
            for seed, loss in zip(point.seeds, point.losses, strict=True):
                loss_IKS[i, at_value[point.value], at_seed[seed]] = loss
    return Cube(
        x_K=np.log2(np.array(values, dtype=float)),
        doublings_I=np.log2([basin.scale for basin in group]),
        loss_IKS=loss_IKS,
    )
