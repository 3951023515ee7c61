"""Laws: from the losses of a few shapes to the loss at another scale, with an interval. Pure.

    loss(x) = level + gain * (law(x) + wander(x) + scatter of the shape) + noise of the seed,   x = log2 of the scale

A law says how the gain per doubling goes on: it shrinks by the same factor with every doubling (a power law above a
floor), it stays, or it grows. No model obeys such a law exactly, and three to five shapes do not tell which law is the
nearest. So the gain also wanders about the law: it takes a random walk, whose step per octave is a share of the gain
(an integrated Wiener process; Wahba 1978, J. R. Statist. Soc. B 40, 364). All combinations of a law, a wander, a
scatter and a noise are weighed by the likelihood that knows neither level nor gain (REML, as in `verdict.noise`), and
the prediction is the mixture of all of them. None is chosen, so the interval is wider where losses do not tell them
apart.

Array letters: N shapes, P combinations of a wander, a scatter and a noise, C combinations with a law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, special, stats

from hpxfer.intervals import Floats, Ints
from hpxfer.verdict.thresholds import PREDICT_SHAPES

Law = Literal["shrinking gain", "constant gain", "growing gain"]
LAWS: tuple[Law, ...] = ("shrinking gain", "constant gain", "growing gain")
LAW_WEIGHTS = {"shrinking gain": 0.75, "constant gain": 0.15, "growing gain": 0.10}  # beforehand

# Exponents per octave of scale. 0.06 to 2 holds the published exponents of loss in parameters (0.076, Kaplan 2020, to
# 0.34, Hoffmann 2022), and twice those, as parameters grow with the square of the width.
SHRINKING = np.geomspace(0.06, 2.0, 21)
GROWING = np.array([-0.25, -0.5])
# The random walk of the gain: its standard deviation after one octave, as a share of the measured gain.
WANDERS = np.geomspace(0.05, 0.6, 8)
# The scatter of single shapes about the smooth curve, as a share of the measured gain: dimensions are rounded, and the
# transferred HP lies closer to the optimum of one shape than of the next.
SCATTERS = np.array([0.0, 0.03, 0.1])
SCATTER_WEIGHTS = np.array([0.5, 0.3, 0.2])
NOISE_QUANTILES = (np.arange(7) + 0.5) / 7
MOST_FREEDOM = 12  # shapes may differ in their noise, so more seeds say no more about that of another one
SAME = 1e-9  # octaves between two names of one scale
LEAST_NATS = 1e-6  # the noise where all seeds agree to the last digit


@dataclass(frozen=True, kw_only=True)
class LawShare:
    """What one kind of law says by itself: its weight among all of them, and the loss that it predicts."""

    law: Law
    weight: float
    loss: float  # the median
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The loss of one run at a scale, in the unit of the losses. `low` and `high` hold it with a chance of `level`."""

    loss: float  # the median
    low: float
    high: float
    mean_low: float  # the same for the mean over many seeds
    mean_high: float
    level: float
    laws: tuple[LawShare, ...]
    gain: float  # per doubling, as measured between neighbors: root mean square
    wander: float  # the share of the gain by which it wanders in one octave: the mean of what the losses leave possible
    noise: float  # of one seed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Mixture:
    """The predictions of every combination: normal in the mean over seeds, and in one run."""

    weight_C: Floats  # sums to one
    kind_C: Ints  # the index of its law in LAWS
    wander_C: Floats
    mean_C: Floats
    mean_sd_C: Floats
    run_sd_C: Floats

    def quantiles(self, level: float, sd_C: Floats, kind: int | None = None) -> tuple[float, float, float]:
        """Return the lower end, the median and the upper end, of all combinations or of those of one law."""
        weight_C = self.weight_C if kind is None else np.where(self.kind_C == kind, self.weight_C, 0.0)
        weight_C = weight_C / weight_C.sum()
        low, middle, high = (
            _quantile(share, self.mean_C, sd_C, weight_C) for share in ((1 - level) / 2, 0.5, (1 + level) / 2)
        )
        return low, middle, high

    def shares(self, level: float) -> tuple[LawShare, ...]:
        """Return what each law says by itself."""
        out = []
        for kind, law in enumerate(LAWS):
            weight = float(self.weight_C[self.kind_C == kind].sum())
            if weight > 0:
                low, loss, high = self.quantiles(level, self.run_sd_C, kind)
                out.append(LawShare(law=law, weight=weight, loss=loss, low=low, high=high))
        return tuple(out)


def forecast(
    x: Sequence[float],
    y: Sequence[float],
    num_seeds: Sequence[int],
    noise: float,
    freedom: int,
    at: float,
    level: float,
) -> Forecast:
    """Return the loss at `at` octaves, from the mean losses `y` of `num_seeds` seeds at `x` octaves, ascending.

    At least PREDICT_SHAPES shapes are needed. `noise` is the standard deviation of one seed, with `freedom` degrees of
    freedom.
    """
    x_N, y_N, noise = np.array(x, dtype=float), np.array(y, dtype=float), max(noise, LEAST_NATS)
    assert x_N.size >= PREDICT_SHAPES
    assert bool(np.all(np.diff(x_N) > 0))
    gain = max(math.sqrt(float(np.mean((np.diff(y_N) / np.diff(x_N)) ** 2))), LEAST_NATS)
    freedom = min(freedom, MOST_FREEDOM)
    noises = noise * np.sqrt(freedom / stats.chi2.ppf(NOISE_QUANTILES, freedom))
    found = _mixture(x_N, y_N, np.array(num_seeds, dtype=float), noises, gain, at)
    low, loss, high = found.quantiles(level, found.run_sd_C)
    mean_low, _, mean_high = found.quantiles(level, found.mean_sd_C)
    return Forecast(
        loss=loss,
        low=low,
        high=high,
        mean_low=mean_low,
        mean_high=mean_high,
        level=level,
        laws=found.shares(level),
        gain=gain,
        wander=float(found.weight_C @ found.wander_C),
        noise=noise,
    )


def _mixture(x: Floats, y: Floats, num_seeds: Floats, noises: Floats, gain: float, at: float) -> _Mixture:
    """Return every combination of a law, a wander, a scatter and a noise, weighed by prior and likelihood."""
    exponents = np.concatenate([SHRINKING, [0.0], GROWING])
    kinds = np.repeat([0, 1, 2], [SHRINKING.size, 1, GROWING.size])
    law_prior = [LAW_WEIGHTS[LAWS[kind]] / np.sum(kinds == kind) for kind in kinds]
    wander_P, scatter_P, noise_P = (each.ravel() for each in np.meshgrid(WANDERS, SCATTERS, noises, indexing="ij"))
    prior_P = np.repeat(np.tile(SCATTER_WEIGHTS, WANDERS.size), noises.size)
    parts = [_weigh(x, y, num_seeds, at, each, wander_P * gain, scatter_P * gain, noise_P) for each in exponents]
    log_C, mean_C, variance_C = (np.concatenate(column) for column in zip(*parts, strict=True))
    log_C = log_C + np.log(np.outer(law_prior, prior_P).ravel())
    weight_C = np.exp(log_C - log_C.max())
    return _Mixture(
        weight_C=weight_C / weight_C.sum(),
        kind_C=np.repeat(kinds, noise_P.size),
        wander_C=np.tile(wander_P, exponents.size),
        mean_C=mean_C,
        mean_sd_C=np.sqrt(variance_C),
        run_sd_C=np.sqrt(variance_C + np.tile(noise_P, exponents.size) ** 2),
    )


def _weigh(
    x: Floats,
    y: Floats,
    num_seeds: Floats,
    at: float,
    exponent: float,
    wander_P: Floats,
    scatter_P: Floats,
    noise_P: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return the log likelihoods without level and gain, and the means and variances at `at`, of one law."""
    middle = float(x.mean())
    every = np.append(x, at) - middle
    design = np.stack([np.ones(every.size), _law(every, x - middle, exponent)], axis=1)
    walk = _integrated_walk(every)
    own = noise_P[:, None] ** 2 / num_seeds + scatter_P[:, None] ** 2
    covariance = wander_P[:, None, None] ** 2 * walk[:-1, :-1] + own[:, :, None] * np.eye(x.size)
    # The scatter of a measured shape is a part of its own loss, and that of another shape is not.
    across = wander_P[:, None] ** 2 * walk[-1, :-1] + scatter_P[:, None] ** 2 * np.isclose(x, at, rtol=0, atol=SAME)
    inverse = np.linalg.inv(covariance)
    known, new = design[:-1], design[-1]
    normal = known.T @ inverse @ known
    fit = np.linalg.solve(normal, (known.T @ inverse @ y)[:, :, None])[:, :, 0]
    residual = y - fit @ known.T
    squares = np.einsum("pi,pij,pj->p", residual, inverse, residual)
    log = -0.5 * (squares + np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(normal)[1])
    pull = np.einsum("pi,pij->pj", across, inverse)
    rest = new - pull @ known
    mean = fit @ new + np.einsum("pj,pj->p", pull, residual)
    variance = wander_P**2 * walk[-1, -1] + scatter_P**2 - np.einsum("pj,pj->p", pull, across)
    variance += np.einsum("pi,pi->p", rest, np.linalg.solve(normal, rest[:, :, None])[:, :, 0])
    return log, mean, np.maximum(variance, 0.0)


def _law(x: Floats, measured: Floats, exponent: float) -> Floats:
    """Return how a law falls over `x`, scaled to fall by 1 per octave on average over the measured shapes."""
    if exponent == 0:
        return -x
    falls = 2.0 ** (-exponent * x)
    ends = 2.0 ** (-exponent * measured[[0, -1]])
    return np.asarray(falls * (measured[-1] - measured[0]) / (ends[0] - ends[1]))


def _integrated_walk(x: Floats) -> Floats:
    """Return the covariance of a random walk of unit steps per octave, integrated once, to both sides of 0."""
    near = np.minimum(np.abs(x)[:, None], np.abs(x)[None])
    far = np.maximum(np.abs(x)[:, None], np.abs(x)[None])
    return np.where(x[:, None] * x[None] > 0, near**2 * (3 * far - near) / 6, 0.0)


def _quantile(share: float, mean_C: Floats, sd_C: Floats, weight_C: Floats) -> float:
    """Return the quantile of a mixture of normals."""

    def over(value: float) -> float:
        return float(weight_C @ special.ndtr((value - mean_C) / sd_C)) - share

    reach = 12 * float(sd_C.max())
    return float(optimize.brentq(over, float(mean_C.min()) - reach, float(mean_C.max()) + reach, xtol=1e-9))
