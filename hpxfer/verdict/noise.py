"""Seed noise: how far losses differ by the choice of seeds alone, and how this changes along the HP.

The trials of a seed share their batches and initial draws. So a seed is lucky at one HP and at the next: its losses
differ from the mean of all seeds by a level, which no difference of HPs sees, by a slope in log2 HP, which moves its
optimum, and by noise of its own in every trial:

    loss = mean of the cell + level of the seed + slope of the seed * octaves + noise of the trial

A seed that few cells have shows no level, and its level is part of the noise.

The variances of the slope and of the noise follow from the likelihood that knows neither means nor levels (REML;
Patterson and Thompson 1971, Biometrika 58, 545). They are averaged over a few ratios of the two, by their likelihood.
The noise is pooled over all shapes and parameterizations of a line.

Noise may grow or shrink with the size of a shape. Its log then follows a line in log2 scale. Slopes are averaged by
their likelihood too, and no slope is twice as likely beforehand as all others together.

The noise is that of the neighborhood of the optimum: of the fitted cells whose seeds agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from hpxfer.intervals import Bools, Floats, Ints
from hpxfer.verdict.loss_grid import ShapeLosses
from hpxfer.verdict.measured import Measured

RATIOS = np.array([0.0, 0.3, 1.0, 3.0])  # of the slope per octave to the noise of a trial
RATIO_WEIGHTS = np.array([0.45, 0.3, 0.15, 0.1])  # beforehand
# The log2 of the standard deviation of a trial at the largest shape of an axis over that at the smallest.
GROWTHS = np.arange(-5.0, 5.1, 0.5)
GROWTH_WEIGHTS = np.exp(-np.abs(GROWTHS) / 2)  # beforehand
GROWTH_WEIGHTS *= np.where(GROWTHS == 0, 0.7, 0.3 / (GROWTH_WEIGHTS.sum() - 1))
SPREAD = 10.0  # octaves squared, summed over five cells at factor 2: what the slope of a line is divided by
ROUNDING = 1e-9
LEAST = 1e-6  # nats: the noise where all seeds agree to the last digit
IGNORED = 2  # cells in which two seeds that change nothing must agree: in one, equal losses may be chance


@dataclass(frozen=True, kw_only=True)
class SeedNoise:
    """The noise of seeds of a line."""

    variance: float  # of one trial, nats squared, without the level of its seed
    slope_variance: float  # of a seed, (nats per octave) squared
    freedom: float  # degrees of freedom of what moves an optimum
    trial_freedom: float  # those of the variance of a trial alone

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def at(self, measured: Measured) -> SeedNoise:
        """Return the noise at one shape."""
        ratio = measured.noise_ratio
        return replace(self, variance=ratio * self.variance, slope_variance=ratio * self.slope_variance)

    def of_means(self, measured: Measured) -> Floats:
        """Return the variances of the means of the cells of a shape without their levels, (K,); `self` is its noise."""
        return np.asarray(self.variance * measured.share_K + measured.doubt_K)

    def doubt_se(self, measured: Measured, a: int, b: int) -> float:
        """Return the part of the error of `cells_se` that comes from seeds that disagree."""
        return math.sqrt(float(measured.doubt_K[[a, b]].sum()))

    def cells_se(self, measured: Measured, a: int, b: int) -> float:
        """Return the standard error of the difference of the means of two cells of a shape; `self` is its noise."""
        octaves = float(measured.x_K[a] - measured.x_K[b])
        own = self.variance * float(measured.share_K[[a, b]].sum())
        slopes = self.slope_variance * octaves**2 / max(int(measured.num_K[[a, b]].min()), 1)
        return math.sqrt(own + slopes + self.doubt_se(measured, a, b) ** 2)


def seed_noise(
    rows: Sequence[Measured], place_of: Mapping[str, Mapping[int, float]]
) -> tuple[SeedNoise | None, tuple[Measured, ...]]:
    """Return the noise of seeds, pooled over shapes, and the shapes with the ratio of their own noise to it.

    `place_of` says of each axis where its shapes lie by log2 scale, from -0.5 for the smallest to 0.5. The noise is
    None if no shape has two seeds.
    """
    observed = [(i, part) for i, measured in enumerate(rows) if (part := _observations(measured)) is not None]
    found = {i: [_squares(*part, ratio) for ratio in RATIOS] for i, part in observed}
    found = {i: parts for i, parts in found.items() if parts[0][2] > 0}
    if not found:
        return None, tuple(rows)
    log_I = np.zeros(len(rows))
    for places in place_of.values():
        on_axis = [i for i in places if i in found]
        growth_G = _growth([found[i] for i in on_axis], np.array([places[i] for i in on_axis]))
        for i, place in places.items():
            of_axes = sum(i in others for others in place_of.values())  # the base lies on every axis
            log_I[i] += math.log(float(growth_G @ 4.0 ** (GROWTHS * place))) / of_axes
    ratio_I = np.exp(log_I)
    squares_R = np.array([sum(found[i][r][0] / ratio_I[i] for i in found) for r in range(RATIOS.size)])
    volume_R = np.array([sum(found[i][r][1] for i in found) for r in range(RATIOS.size)])
    num = sum(parts[0][2] for parts in found.values())
    weight = _normalized(-0.5 * num * np.log(np.maximum(squares_R, LEAST**2)) - 0.5 * volume_R + np.log(RATIO_WEIGHTS))
    variance, slope = float(weight @ squares_R) / num, float(weight @ (squares_R * RATIOS**2)) / num
    share = slope / max(slope + variance / SPREAD, LEAST**2)
    # Shapes share seeds, and perhaps their luck: half as many independent slopes as there are curves.
    seeds = sum(part[2].size - 1 for i, part in observed if i in found) / 2
    freedom = 1 / (share**2 / max(seeds, 1) + (1 - share) ** 2 / num)  # Satterthwaite 1946
    noise = SeedNoise(variance=max(variance, LEAST**2), slope_variance=slope, freedom=freedom, trial_freedom=num)
    return noise, tuple(replace(m, noise_ratio=float(ratio)) for m, ratio in zip(rows, ratio_I, strict=True))


def _growth(found: Sequence[list[tuple[float, float, int]]], place_I: Floats) -> Floats:
    """Return how likely each growth of the noise along an axis is, by the noise of shapes at places on it."""
    if len(found) < 2:
        return np.asarray(GROWTHS == 0, dtype=float)
    num_I = np.array([parts[0][2] for parts in found])
    factor_GI = 4.0 ** (GROWTHS[:, None] * place_I)
    log_RG = []
    for r, prior in enumerate(RATIO_WEIGHTS):
        squares_I = np.array([parts[r][0] for parts in found])
        volume = sum(parts[r][1] for parts in found)
        total_G = np.maximum((squares_I / factor_GI).sum(axis=1), LEAST**2)
        log_RG.append(math.log(prior) - 0.5 * (num_I.sum() * np.log(total_G) + np.log(factor_GI) @ num_I + volume))
    weight_RG = _normalized(np.array(log_RG) + np.log(GROWTH_WEIGHTS))
    return np.asarray(weight_RG.sum(axis=0))


def _normalized(log: Floats) -> Floats:
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum())


def _observations(measured: Measured) -> tuple[Ints, Ints, Bools, Floats, Floats] | None:
    """Return cell, seed, octaves and loss of each trial near the optimum, and which seeds have a level.

    None with fewer than two seeds.
    """
    if measured.lowest is None:
        return None
    cells = measured.cells_N[measured.doubt_K[measured.cells_N] == 0]
    loss_NS = measured.loss_KS[cells]
    cell, seed = np.nonzero(np.isfinite(loss_NS))
    seeds, seed = np.unique(seed, return_inverse=True)
    if seeds.size < 2:
        return None
    octaves = measured.x_K[cells] - measured.x_K[measured.lowest]
    loss = loss_NS[np.isfinite(loss_NS)] - float(measured.mean_K[measured.lowest])
    return cell, seed, measured.linked_S[seeds], octaves[cell], loss


def _squares(
    cell: Ints, seed: Ints, linked_S: Bools, octaves: Floats, loss: Floats, ratio: float
) -> tuple[float, float, int]:
    """Return the sum of squares of a shape at this ratio, its log volume, and its number of independent differences."""
    cell_TC = cell[:, None] == np.arange(cell.max() + 1)
    seed_TS = seed[:, None] == np.arange(linked_S.size)
    # Without the first seed, as cells have all levels together. Beside trials without a level they do not.
    levels_TS = seed_TS[:, 1:] if linked_S.all() else seed_TS[:, linked_S]
    design = np.concatenate([cell_TC, levels_TS], axis=1).astype(float)
    # The covariance is 1 + ratio^2 sum_S slope_S slope_S^T, and its inverse follows (Sherman and Morrison 1950).
    slope_TS = seed_TS * octaves[:, None]
    size_S = 1 + ratio**2 * (slope_TS**2).sum(axis=0)
    share_S = ratio**2 / size_S
    projected = design.T - (design.T @ slope_TS * share_S) @ slope_TS.T
    sizes, axes = np.linalg.eigh(projected @ design)
    good = sizes > ROUNDING
    explained = float(((axes.T @ (projected @ loss))[good] ** 2 / sizes[good]).sum())
    squares = max(float(loss @ loss - share_S @ (slope_TS.T @ loss) ** 2) - explained, 0.0)
    volume = float(np.log(size_S).sum()) + float(np.log(sizes[good]).sum())
    return squares, volume, loss.size - int(good.sum())


def ignored_seeds(rows: Iterable[ShapeLosses]) -> str | None:
    """Return in words where the training ignores its seed, or None. It then has no noise, and verdicts too sure.

    Trainers print few digits, so that equal losses in one cell may be chance. Two seeds count as one if they have the
    same loss in every cell of a shape where neither diverged, and in two such cells at least.
    """
    for row in rows:
        by_seed = [{seed: loss for seed, loss in cell.by_seed.items() if loss < math.inf} for cell in row.cells]
        for one, other in combinations(row.seeds, 2):
            both = [(found[one], found[other]) for found in by_seed if one in found and other in found]
            if len(both) >= IGNORED and all(a == b for a, b in both):
                return (
                    f"{row.name}: seeds {one} and {other} end with exactly the same loss in all {len(both)} cells: "
                    "the training ignores its seed, so that the noise is not known; pass the seed on"
                )
    return None
