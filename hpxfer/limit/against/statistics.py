"""Statistics of finite networks against their limit. All are pure functions of the deviations d = finite - limit.

One network deviates as N^-1/2: its initial weights are one draw. The mean over draws deviates as 1/N: such a law fits
measured means far better than N^-1/2 wherever they are resolved (docs/limit.md). So a network that follows its table is
not at its limit at any width, and a test that asks whether the widest mean is there would accuse it once seeds are many
enough. The test here asks where the means go: it extrapolates them to 1/N = 0.

Letters: J sizes, ascending; S seeds; T passes. Networks of one seed are correlated across sizes, as a larger one begins
with the same random numbers. So every error is that of a number per seed, and none assumes independent sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
# Sizes from which on the extrapolation allows 1/N^2 beside 1/N. With fewer it would cost more than it mends: at widths
# 64 to 1024 the intercept has 1.4 times the error of the widest mean, at 256 to 1024 it would have 3.9 times.
CURVED = 4
# Float32 networks compute a loss to about this share of the loss at the start.
ROUNDING = 1e-6
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Deviations:
    """The deviations of the seeds that every size has. There are at least two sizes and two seeds."""

    sizes: tuple[float, ...]  # J, ascending
    values: Floats  # [J, S, T]
    error: Floats  # [T], of the limit: its standard error
    error_seeds: int  # over how many draws of the solver; 0 where the limit is exact
    scale: float  # what deviations are compared with: the fall of the limit's loss

    @property
    def num_seeds(self) -> int:
        return self.values.shape[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mean:
    """The mean over seeds of one number per seed and pass, with its standard error and its t statistic."""

    mean: Floats
    error: Floats
    freedom: Floats  # degrees of freedom of the error
    z: Floats

    @property
    def p(self) -> Floats:
        """The probability of a |z| that large without a deviation, by Student's t."""
        out: Floats = 2 * stats.t.sf(np.abs(self.z), self.freedom)
        return out


def mean_of(values: Floats, found: Deviations) -> Mean:
    """Return mean, error and z of numbers [..., S, T] over seeds.

    error^2 = s^2 / S + e^2 + rounding^2, with s the standard deviation over seeds and e the error of the limit, and
    z = mean / error. The degrees of freedom are those of Welch and Satterthwaite. Where an error is zero and the mean
    is zero too (the loss before the first update, under a readout of zero), z is 0.
    """
    count = values.shape[-2]
    mean = values.mean(axis=-2)
    of_seeds = values.var(axis=-2, ddof=1) / count
    of_limit = np.broadcast_to(found.error**2, mean.shape)
    error = np.sqrt(of_seeds + of_limit + (ROUNDING * found.scale) ** 2)
    below = of_seeds**2 / (count - 1) + of_limit**2 / max(found.error_seeds - 1, 1)
    above = (of_seeds + of_limit) ** 2
    # Without any spread only rounding is left, which is no random number with few degrees of freedom.
    freedom = np.divide(above, below, out=np.full(mean.shape, np.inf), where=below > 0)
    return Mean(mean=mean, error=error, freedom=freedom, z=mean / error)


def intercept_weights(sizes: Sequence[float], degree: int) -> Floats:
    """Return the weights [J] that extrapolate means to 1/N = 0.

    They are those of the least squares fit of a + c/N (+ b/N^2 with degree 2), with variances as 1/N. Their sum is 1,
    and that of w_j/N_j is 0: an offset of all sizes is seen in full, and a bias c/N not at all. They depend on the
    sizes alone, so the error of what they give is as exact as that of a mean.
    """
    n = np.asarray(sizes, float)
    powers = (n[:, None] / n.min()) ** -np.arange(degree + 1)
    weighted = powers * n[:, None]
    out: Floats = np.linalg.solve(weighted.T @ powers, weighted.T)[0]
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Extrapolated:
    """Where the means over seeds go as 1/N goes to 0, less the limit."""

    offset: Mean  # [T]. Its error holds that of the extrapolation
    p: float
    """The probability that one of the passes deviates so surely without cause: T times the least one (Bonferroni)."""
    worst: int
    """The pass of the least probability."""
    seen: float
    """The offset, over the scale, that would be seen at half of the passes in 4 of 5 sweeps, at level ALPHA."""
    is_curved: bool


# The level of the accusation.
ALPHA = 1e-3
POWER = 0.8
# The error of an extrapolation, in units of what it moves by when the smallest size is left out. Planted deviations
# -A/(1 + N/N0) have terms of all orders. With 3, fewer than 1 of 100 such sweeps were accused at N0 = 1000 and widths 64
# to 1024, and all were with 0; an offset of a tenth of the fall of the loss is still seen from 16 seeds.
DOUBT = 3.0


def extrapolate(found: Deviations) -> Extrapolated:
    """Return the means over seeds extrapolated to an infinite network, and whether they miss the limit.

    Each seed gives one number per pass, sum_j w_j d_j, so correlations between sizes and their unequal variances are in
    the spread over seeds. Networks that are still far from their limit do not follow a polynomial of 1/N. That shows:
    without the smallest size the extrapolation goes elsewhere. DOUBT times the largest such move so far is an error.
    """
    degree = 2 if len(found.sizes) >= CURVED else 1
    weights = intercept_weights(found.sizes, degree)
    rest = found.sizes[1:]
    fewer = np.array([0.0, *intercept_weights(rest, min(degree, len(rest) - 1))])
    plain = mean_of(np.einsum("j,jst->st", weights, found.values), found)
    moved = np.abs(np.einsum("j,jst->t", fewer - weights, found.values) / found.num_seeds)
    error = np.hypot(plain.error, DOUBT * np.maximum.accumulate(moved))
    offset = Mean(mean=plain.mean, error=error, freedom=plain.freedom, z=plain.mean / error)
    passes = len(offset.mean)
    p = offset.p
    level = stats.t.isf(ALPHA / passes / 2, offset.freedom) + stats.norm.ppf(POWER)
    worst = int(np.argmin(p))
    return Extrapolated(
        offset=offset,
        p=min(1.0, passes * float(p[worst])),
        worst=worst,
        seen=float(np.median(level * error)) / found.scale,
        is_curved=degree == 2,
    )


@dataclass(frozen=True, kw_only=True)
class Slope:
    """An exponent of N, with its interval of CONFIDENCE."""

    slope: float
    low: float
    high: float


def network_slope(found: Deviations) -> Slope | None:
    """Return the exponent of the RMS over seeds and passes of one network's deviation: expected -1/2.

    It is steeper where the bias c/N is as large as the spread. None with fewer than 3 seeds, or where nothing deviates.
    """

    def slope(values: Floats) -> float:
        size = np.sqrt(np.mean(values**2, axis=(1, 2)))
        return _slope(found.sizes, size)

    return _jackknife(found, slope)


def mean_slope(found: Deviations) -> tuple[Slope, int] | None:
    """Return the exponent of the |mean over seeds| at one pass, and that pass: expected -1.

    It is the pass whose means are surest: that with the largest least |z| over sizes. None where no pass has means
    beyond 3 standard errors at every size, as a mean of noise has no exponent.
    """
    found_mean = mean_of(found.values, found)
    surest = np.min(np.abs(found_mean.z), axis=0)
    at = int(np.argmax(surest))
    if surest[at] < RESOLVED or len(set(np.sign(found_mean.mean[:, at]))) > 1:
        return None

    def slope(values: Floats) -> float:
        return _slope(found.sizes, np.abs(values[:, :, at].mean(axis=1)))

    out = _jackknife(found, slope)
    return None if out is None else (out, at)


RESOLVED = 3.0  # standard errors


def _slope(sizes: Sequence[float], heights: Floats) -> float:
    if not (heights > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(heights), 1)[0])


def _jackknife(found: Deviations, statistic: Callable[[Floats], float]) -> Slope | None:
    """Return a statistic of [J, S, T] with its interval, by leaving out one seed after the other."""
    count = found.num_seeds
    if count < 3:
        return None
    whole = statistic(found.values)
    parts = np.array([statistic(np.delete(found.values, seed, axis=1)) for seed in range(count)])
    if not np.isfinite([whole, *parts]).all():
        return None
    error = np.sqrt((count - 1) / count * np.sum((parts - parts.mean()) ** 2))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * error)
    return Slope(slope=whole, low=whole - half, high=whole + half)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far a size is from its limit, as shares of the scale (the fall of the limit's loss)."""

    size: float
    mean: float
    """RMS over passes of the mean over seeds."""
    noise: float
    """What `mean` is where there is no deviation: the RMS over passes of its standard error."""
    network: float
    """RMS over passes and seeds: of one network."""
    widest_z: float
    """The largest |z| over passes of the mean. Beyond 4 the size is surely not at its limit yet."""
    within: bool | None
    """Whether the mean lies within `tolerance` of the limit's loss at all passes; None where seeds leave it open."""

    @property
    def is_resolved(self) -> bool:
        return self.mean > 2 * self.noise


def distances(found: Deviations, losses: Floats, tolerance: float) -> tuple[Distance, ...]:
    """Return the distance of every size. `losses` [T] are those of the limit.

    A size is within the tolerance if |mean| + 2 errors <= tolerance * loss at all passes, and not within it if
    |mean| - 2 errors > tolerance * loss at one.
    """
    means = mean_of(found.values, found)
    out = []
    for j, size in enumerate(found.sizes):
        mean, error = np.abs(means.mean[j]), means.error[j]
        most = tolerance * losses
        within = True if (mean + 2 * error <= most).all() else False if (mean - 2 * error > most).any() else None
        out.append(
            Distance(
                size=size,
                mean=float(np.sqrt(np.mean(mean**2))) / found.scale,
                noise=float(np.sqrt(np.mean(error**2))) / found.scale,
                network=float(np.sqrt(np.mean(found.values[j] ** 2))) / found.scale,
                widest_z=float(np.max(np.abs(means.z[j]))),
                within=within,
            )
        )
    return tuple(out)
