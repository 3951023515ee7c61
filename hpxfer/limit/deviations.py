"""Statistics of finite networks against their limit. All are pure functions of the deviations d = finite - limit.

One network deviates as N^-1/2: its initial weights are one draw. The mean over draws deviates as 1/N: such a law fits
measured means far better than N^-1/2 wherever they are resolved (docs/limit.md). So a network that follows its table is
not at its limit at any width, and a test that asks whether the widest mean is there would accuse it once seeds are many
enough. The test here asks whether the means still go there (`missed`).

Letters: J sizes, ascending; S seeds; T passes. Networks of one seed are correlated across sizes, as a larger one begins
with the same random numbers. So every error is that of a number per seed, and none assumes independent sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from hpxfer.limit.network import Floats

# Float32 networks compute a loss to about this share of it.
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
    most: float  # the largest number of the limit itself

    @property
    def rounding(self) -> float:
        """What a deviation may have from rounding, at every seed alike."""
        return ROUNDING * self.most

    @property
    def num_seeds(self) -> int:
        return int(self.values.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Mean:
    """The mean over seeds of one number per seed and pass, with its standard error and its t statistic."""

    mean: Floats
    error: Floats
    freedom: Floats  # degrees of freedom of the error
    z: Floats


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
    error = np.sqrt(of_seeds + of_limit + found.rounding**2)
    below = of_seeds**2 / (count - 1) + of_limit**2 / max(found.error_seeds - 1, 1)
    above = (of_seeds + of_limit) ** 2
    # Without any spread only rounding is left, which is no random number with few degrees of freedom.
    freedom = np.divide(above, below, out=np.full(mean.shape, np.inf), where=below > 0)
    return Mean(mean=mean, error=error, freedom=freedom, z=mean / error)


@dataclass(frozen=True, kw_only=True, eq=False)
class Test:
    """Whether the means over seeds miss the limit, however large the networks."""

    p: float
    """The probability of deviations as sure as these, if the networks approach the limit as N^-SLOWEST or faster."""
    against_size: float  # that the largest size is compared with
    p_of_pass: Floats  # [T]; 1 where nothing can deviate
    worst: int
    """The pass of the least probability, and of equal ones that of the largest z of the widest."""
    seen: float
    """The offset of all sizes, over the scale, that would be seen in 4 of 5 sweeps at level ALPHA."""


ALPHA = 1e-3  # the level at which networks are said to miss their limit
# An offset of this share of the scale must be visible, else agreement says nothing.
MOST_UNSEEN = 0.25
POWER = 0.9  # of one contrast. Two of them must be sure, at several passes, which leaves about 0.8
# The slowest approach of means that is allowed, as a power of N. It is 1/N in the end. Before that, where networks are
# still far from their limit, it is slower: under muP in regimes II and III (docs/limit.md). So the test allows much
# less. It costs power that is not missed: a swapped initialization moves the loss by a good part of its fall.
SLOWEST = 0.25
# The share of the passes at which means must miss the limit. One pass alone may have a mean that stays, or changes its
# sign, between two sizes that are far from the limit.
SHARE = 1 / 3


def missed(found: Deviations) -> Test:
    """Test whether the means m of the largest size N and of a smaller one N' (`_partner`) miss the limit.

    If means fall as N^-q with q >= SLOWEST, what is left at N is at most k = 1/((N/N')^SLOWEST - 1) times what fell
    from N' to N: |m(N)| <= k |m(N') - m(N)|. So the limit is missed at a pass if both m(N) - k (m(N') - m(N))
    and m(N) + k (m(N') - m(N)) have the same sign for sure. Each is a mean over seeds of one number per seed, so
    correlations between sizes are in its error. Both must be sure, so no level is shared between them (an
    intersection-union test). Over T passes of any dependence, the n-th least probability times T/n is one (Rueger,
    1978), with n = SHARE T.

    Passes at which no seed can deviate are left out, such as the one before training under a readout of zero: agreement
    there says nothing.
    """
    partner = _partner(found.sizes)
    k = 1 / ((found.sizes[-1] / found.sizes[partner]) ** SLOWEST - 1)
    last, before = found.values[-1], found.values[partner]
    ends = [mean_of(last - sign * k * (before - last), found) for sign in (1, -1)]
    above = np.maximum(*(np.asarray(stats.t.sf(end.z, end.freedom)) for end in ends))
    below = np.maximum(*(np.asarray(stats.t.sf(-end.z, end.freedom)) for end in ends))
    free = np.maximum(*(end.error for end in ends)) > math.sqrt(2) * found.rounding
    if not free.any():
        free[:] = True
    p = np.where(free, np.minimum(1.0, 2 * np.minimum(above, below)), 1.0)
    count = math.ceil(SHARE * free.sum())
    factor = free.sum() / count
    level = [(stats.t.isf(ALPHA / factor / 2, end.freedom) + stats.norm.ppf(POWER)) * end.error for end in ends]
    return Test(
        against_size=found.sizes[partner],
        p=min(1.0, factor * float(np.sort(p)[count - 1])),
        p_of_pass=p,
        worst=int(np.lexsort((-np.abs(mean_of(last, found).z), p))[0]),
        seen=float(np.sort(np.max(level, axis=0)[free])[count - 1]) / found.scale,
    )


# The largest size is compared with one that is at most so many times smaller. The further away it is, the surer is the
# test, and the longer must the means have fallen as N^-SLOWEST.
SPAN = 4.0


def _partner(sizes: Sequence[float]) -> int:
    """Return the place of the smallest size within SPAN of the largest; of the second largest if there is none."""
    near = [at for at, size in enumerate(sizes[:-1]) if sizes[-1] / size <= SPAN]
    return near[0] if near else len(sizes) - 2


@dataclass(frozen=True, kw_only=True)
class Slope:
    """An exponent of N, with its interval of CONFIDENCE."""

    exponent: float
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


def mean_slope(found: Deviations) -> Slope | None:
    """Return the exponent of the RMS over passes of the mean over seeds: expected -1.

    None unless that is more than RESOLVED times its noise at every size, as a mean of noise has no exponent of its own.
    """
    means = mean_of(found.values, found)
    size, noise = (np.sqrt(np.mean(each**2, axis=1)) for each in (means.mean, means.error))
    if (size <= RESOLVED * noise).any():
        return None
    return _jackknife(found, lambda values: _slope(found.sizes, np.sqrt(np.mean(values.mean(axis=1) ** 2, axis=1))))


RESOLVED = 2.0


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
    return Slope(exponent=whole, low=whole - half, high=whole + half)


def distances(found: Deviations, losses: Floats, tolerance: float) -> list[dict[str, Any]]:
    """Return how far each size is from its limit, as a row per size. `losses` [T] are those of the limit.

    Distances are shares of the scale, as an RMS over passes (and seeds). A size is within the tolerance if
    |mean| + 2 errors <= tolerance * loss at all passes, and not within it if |mean| - 2 errors > tolerance * loss at
    one. Where seeds leave it open, `within` is None.
    """
    means = mean_of(found.values, found)
    out = []
    for size, values, mean, error, z in zip(found.sizes, found.values, means.mean, means.error, means.z, strict=True):
        off, most = np.abs(mean), tolerance * losses
        within = True if (off + 2 * error <= most).all() else False if (off - 2 * error > most).any() else None
        shares = {"mean_minus_limit": mean, "noise": error, "one_network": values}
        rms = {name: float(np.sqrt(np.mean(each**2))) / found.scale for name, each in shares.items()}
        out.append({"size": size, **rms, "largest_z": float(np.max(np.abs(z))), "within": within})
    return out
