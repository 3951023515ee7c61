"""Seed noise: how far losses differ by the choice of seeds alone, and how this changes along the HP.

The trials of a seed share their batches and initial draws. So a seed is lucky at one HP and at the next: its losses
differ from the mean of all seeds by a level, which no difference of HPs sees, by a slope in log2 HP, which moves its
optimum, and by noise of its own in every trial:

    loss = mean of the cell + level of the seed + slope of the seed * octaves + noise of the trial

The variances of the slope and of the noise follow from the likelihood that knows neither means nor levels (REML;
Patterson and Thompson 1971, Biometrika 58, 545). They are averaged over a few ratios of the two, by their likelihood.
The noise is pooled over all shapes and parameterizations of a line.

An error has a further part, that of the held-out samples (`JudgedLoss.binomial`). All trials share them. Samples that
are hard for every model raise all errors alike, and no difference sees them. Samples on which seeds disagree are part
of the noise that seeds show, and more seeds average them. What is left are samples that are easy for all seeds of one
HP and hard for those of another. Shares alone do not tell how many there are. So the rule is a floor: no trial is known
better than its binomial variance, and what of that seeds do not show counts for each cell, however many seeds it has.
This overstates it where cells fail on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.verdict.basins import Ints
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.measured import Measured

RATIOS = np.array([0.0, 0.3, 1.0, 3.0])  # of the slope per octave to the noise of a trial
RATIO_WEIGHTS = np.array([0.45, 0.3, 0.15, 0.1])  # beforehand
SPREAD = 10.0  # octaves squared, summed over five cells at factor 2: what the slope of a line is divided by
ROUNDING = 1e-9
LEAST = 1e-6  # nats: the noise where all seeds agree to the last digit


@dataclass(frozen=True, kw_only=True)
class SeedNoise:
    """The noise of seeds of a line."""

    variance: float  # of one trial, nats squared, without the level of its seed
    slope_variance: float  # of a seed, (nats per octave) squared
    freedom: float  # degrees of freedom of what moves an optimum

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def of_mean(self, num: Floats | Ints, binomial: Floats) -> Floats:
        """Return the variances of cell means with so many seeds and such binomial variances, without their levels."""
        return np.asarray(self.variance / np.maximum(num, 1) + self.hidden(binomial))

    def hidden(self, binomial: Floats) -> Floats:
        """Return what of binomial variances no number of seeds lowers."""
        return np.asarray(np.maximum(binomial - self.variance, 0.0))

    def difference_se(self, num_a: float, num_b: float, octaves: float, hidden: float = 0.0) -> float:
        """Return the standard error of the difference of two cell means with so many seeds, so many octaves apart.

        `hidden` is the sum of what no number of seeds lowers.
        """
        shared = self.slope_variance * octaves**2 / max(min(num_a, num_b), 1)
        return math.sqrt(self.variance * (1 / max(num_a, 1) + 1 / max(num_b, 1)) + shared + hidden)

    def cells_se(self, measured: Measured, a: int, b: int) -> float:
        """Return the standard error of the difference of the means of two cells of a shape."""
        octaves, hidden = float(measured.x_K[a] - measured.x_K[b]), self.samples_se(measured, a, b) ** 2
        return self.difference_se(float(measured.num_K[a]), float(measured.num_K[b]), octaves, hidden)

    def samples_se(self, measured: Measured, a: int, b: int) -> float:
        """Return the part of that standard error that only more held-out samples lower."""
        return math.sqrt(float(self.hidden(measured.binomial_K[[a, b]]).sum()))


def seed_noise(rows: Sequence[Measured]) -> SeedNoise | None:
    """Return the noise of seeds, pooled over shapes; None if no shape has two seeds."""
    parts = [part for measured in rows if (part := _observations(measured)) is not None]
    found = [_likelihood(parts, ratio) for ratio in RATIOS]
    num = found[0][2]
    if num == 0:
        return None
    log = np.array([likelihood for _, likelihood, _ in found]) + np.log(RATIO_WEIGHTS)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    variances = np.array([variance for variance, _, _ in found])
    variance, slope = float(weight @ variances), float(weight @ (variances * RATIOS**2))
    share = slope / max(slope + variance / SPREAD, LEAST**2)
    # Shapes share seeds, and perhaps their luck: half as many independent slopes as there are curves.
    seeds = sum(int(part[1].max()) for part in parts) / 2
    freedom = 1 / (share**2 / max(seeds, 1) + (1 - share) ** 2 / num)  # Satterthwaite 1946
    return SeedNoise(variance=max(variance, LEAST**2), slope_variance=slope, freedom=freedom)


def _observations(measured: Measured) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Return cell, seed, octaves and loss of each trial near the optimum; None with fewer than two seeds."""
    if measured.lowest is None:
        return None
    loss_NS = measured.loss_KS[measured.cells_N]
    cell, seed = np.nonzero(np.isfinite(loss_NS))
    _, seed = np.unique(seed, return_inverse=True)
    if not seed.size or seed.max() < 1:
        return None
    octaves = measured.x_K[measured.cells_N] - measured.x_K[measured.lowest]
    loss = loss_NS[np.isfinite(loss_NS)] - float(measured.mean_K[measured.lowest])
    return cell.astype(float), seed.astype(float), octaves[cell], loss


def _likelihood(parts: Sequence[tuple[Floats, Floats, Floats, Floats]], ratio: float) -> tuple[float, float, int]:
    """Return the variance of a trial at this ratio, its log likelihood, and the number of independent differences."""
    squares, log_volume, num = 0.0, 0.0, 0
    for cell, seed, octaves, loss in parts:
        num_cells = int(cell.max()) + 1
        design = np.zeros((loss.size, num_cells + int(seed.max())))
        at = np.arange(loss.size)
        design[at, cell.astype(int)] = 1.0
        later = seed > 0
        design[at[later], num_cells + seed[later].astype(int) - 1] = 1.0
        # The covariance is 1 + ratio^2 sum_S slope_S slope_S^T, and its inverse follows (Sherman and Morrison 1950).
        slope_TS = (seed[:, None] == np.arange(seed.max() + 1)) * octaves[:, None]
        size_S = 1 + ratio**2 * (slope_TS**2).sum(axis=0)
        share_S = ratio**2 / size_S
        projected = design.T - (design.T @ slope_TS * share_S) @ slope_TS.T
        sizes, axes = np.linalg.eigh(projected @ design)
        good = sizes > ROUNDING
        explained = float(((axes.T @ (projected @ loss))[good] ** 2 / sizes[good]).sum())
        free = loss.size - int(good.sum())
        if free <= 0:
            continue
        squares += max(float(loss @ loss - share_S @ (slope_TS.T @ loss) ** 2) - explained, 0.0)
        log_volume += float(np.log(size_S).sum()) + float(np.log(sizes[good]).sum())
        num += free
    if num == 0:
        return 0.0, 0.0, 0
    return squares / num, -0.5 * num * math.log(max(squares, LEAST**2)) - 0.5 * log_volume, num
