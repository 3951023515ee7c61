"""Drift: how far the optimum moves per doubling of the scale. Bounds and unequal errors enter the estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from hpxfer.verdict.bootstrap import scatter_ratio
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.thresholds import CONFIDENCE

# In octaves: a smaller error is not one of seeds, but the rounding of losses.
TINY = 1e-9
# Where the profile likelihood is evaluated: sinh of these, in standard errors from the slope without bounds. They are
# dense close to it and reach out to 200 errors.
SLOPES = np.linspace(-6.0, 6.0, 401)
GOLDEN, GOLDEN_STEPS = (math.sqrt(5) - 1) / 2, 40


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Slope of log2(optimum) against log2(scale), in octaves per doubling."""

    octaves_per_doubling: float
    se: float | None  # None if neither the optima have errors nor three shapes a scatter
    num_shapes: int  # that have an estimate
    left_out: tuple[str, ...] = ()  # shapes about which nothing is known
    bounds: tuple[str, ...] = ()  # shapes that have a bound, which the likelihood includes
    low: float | None = None  # the ends of the 95% interval; None on an open side, and if there is no interval
    high: float | None = None
    freedom: int | None = None  # degrees of freedom of `se`, as the interval is Student's
    doublings: float = 0.0  # from the smallest to the largest scale that the slope rests on

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval at another confidence, +-inf on an open side; None if there is no interval."""
        if self.se is None or self.freedom is None or (self.low is None and self.high is None):
            return None
        at, known = (float(stats.t.ppf((1 + c) / 2, self.freedom)) for c in (confidence, CONFIDENCE))
        slope, wider = self.octaves_per_doubling, at / known
        return (
            -math.inf if self.low is None else slope - (slope - self.low) * wider,
            math.inf if self.high is None else slope + (self.high - slope) * wider,
        )


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The optimum of one shape, as a drift is fitted to it, in log2 HP: an estimate, or a bound with `value` None."""

    name: str
    doublings: float  # log2 scale
    value: float | None
    se: float  # its standard error; for a bound, that of the fitted optimum behind it
    low: float = -math.inf
    high: float = math.inf


def fit_drift(scales: Sequence[float], log2_optima: Sequence[float], left_out: tuple[str, ...] = ()) -> Drift | None:
    """Return the least-squares drift of log2 optima without errors; None with fewer than two different scales.

    The error comes from the scatter about the line, so fewer than three shapes give none.
    """
    if len(set(scales)) < 2:
        return None
    x, y = np.log2(scales), np.asarray(log2_optima)
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(np.sum(dx**2))
    slope = float(np.sum(dx * dy)) / spread
    freedom = len(scales) - 2
    se = (float(np.sum((dy - slope * dx) ** 2)) / freedom / spread) ** 0.5 if freedom else None
    return _drift(slope, se, freedom, num_shapes=len(scales), left_out=left_out, doublings=float(np.ptp(x)))


def fit_observed(
    observed: Sequence[Observed], normal_BF: Floats, freedom: int, left_out: tuple[str, ...]
) -> Drift | None:
    """Return the drift of optima with errors, in one likelihood with those of which only a bound is known.

    `normal_BF` are the draws of the shapes with an estimate, in their order. Weights are 1/se^2. The error of the slope
    is that of the slopes of the draws, so errors that the shapes share count as shared. An optimum need not move along
    a straight line: if the optima scatter about it more than the draws do, the error grows by the ratio.
    None with fewer than two different scales that have an estimate.
    """
    points = [shape for shape in observed if shape.value is not None]
    if len({point.doublings for point in points}) < 2:
        return None
    x = np.array([point.doublings for point in points])
    y = np.array([point.value for point in points], dtype=float)
    weight = 1 / np.maximum(np.array([point.se for point in points]), TINY) ** 2
    slope, scatter = _line(x, y, weight)
    slope_B, scatter_B = _line(x, normal_BF - y, weight)
    low, high = (float(np.quantile(slope_B, stats.norm.cdf(side))) for side in (-1, 1))
    se = (high - low) / 2
    rng = np.random.default_rng(0)
    tail_B = np.sqrt(freedom / rng.chisquare(freedom, len(scatter_B)))
    ratio = scatter_ratio(float(scatter), scatter_B, tail_B) if len(points) > 2 else 1.0
    if ratio > 1:
        se, freedom = se * ratio, min(freedom, len(points) - 2)
    kept = {
        "num_shapes": len(points),
        "left_out": left_out,
        "bounds": tuple(shape.name for shape in observed if shape.value is None),
        "doublings": float(np.ptp([shape.doublings for shape in observed])),
    }
    if len(points) == len(observed) or se <= TINY:
        return _drift(float(slope), se, freedom, **kept)
    wider = [replace(shape, se=shape.se * ratio) for shape in observed]
    return _censored(wider, float(slope), se, freedom, **kept)


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the weighted slope of y (..., F) over x (F,), and the weighted sum of squares about the line."""
    dx = x - np.average(x, weights=weight)
    dy = y - np.average(y, weights=weight, axis=-1)[..., None]
    slope = (dy * dx) @ weight / (weight @ dx**2)
    return slope, ((dy - slope[..., None] * dx) ** 2) @ weight


def _drift(slope: float, se: float | None, freedom: int, **kept: object) -> Drift:
    half = None if se is None else se * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return Drift(
        octaves_per_doubling=slope,
        se=se,
        low=None if half is None else slope - half,
        high=None if half is None else slope + half,
        freedom=None if se is None else freedom,
        **kept,  # type: ignore[arg-type]
    )


def _censored(observed: Sequence[Observed], start: float, se: float, freedom: int, **kept: object) -> Drift:
    """Return the drift of greatest likelihood: normal about the line, with the probability of each bound (Tobit).

    The interval holds the slopes whose profile log likelihood is within t^2 / 2 of the maximum. It is open on a side
    where the profile never falls that far. The profile is concave, as the densities and their integrals are
    log-concave, so the ends are unique.
    """
    slopes = start + se * np.sinh(SLOPES)
    profile = _profile(observed, slopes)
    best = int(np.argmax(profile))
    allowed = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) ** 2 / 2
    over = profile - (profile[best] - allowed)
    ends: list[float | None] = []
    for step in (-1, 1):
        beyond = np.flatnonzero(over[best::step] < 0)
        if not beyond.size:
            ends.append(None)
            continue
        out = best + step * int(beyond[0])
        at = over[out] / (over[out] - over[out - step])
        ends.append(float(slopes[out] + at * (slopes[out - step] - slopes[out])))
    halves = [abs(end - slopes[best]) for end in ends if end is not None]
    return Drift(
        octaves_per_doubling=float(slopes[best]),
        se=max(halves) / math.sqrt(2 * allowed) if halves else None,
        low=ends[0],
        high=ends[1],
        freedom=freedom,
        **kept,  # type: ignore[arg-type]
    )


def _profile(observed: Sequence[Observed], slopes: Floats) -> Floats:
    """Return the log likelihood at each slope, (G,), maximized over the intercept by golden-section search."""
    x, value, se, low, high = (
        np.array([getattr(shape, name) for shape in observed], dtype=float)
        for name in ("doublings", "value", "se", "low", "high")
    )
    known, se = ~np.isnan(value), np.maximum(se, TINY)
    away = slopes[:, None] * (x - x.mean())
    ends = np.concatenate([_finite(end - away) for end in (value, low, high)], axis=1)
    left, right = np.nanmin(ends, axis=1) - 8 * se.max(), np.nanmax(ends, axis=1) + 8 * se.max()

    def likelihood(intercept: Floats) -> Floats:
        mu = intercept[:, None] + away
        seen = -(((np.where(known, value, 0.0) - mu) / se) ** 2) / 2
        return np.asarray(np.where(known, seen, log_between((low - mu) / se, (high - mu) / se)).sum(axis=1))

    for _ in range(GOLDEN_STEPS):
        inner, outer = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
        falls = likelihood(inner) > likelihood(outer)
        left, right = np.where(falls, left, inner), np.where(falls, outer, right)
    return np.asarray(likelihood((left + right) / 2))


def _finite(ends: Floats) -> Floats:
    return np.where(np.isfinite(ends), ends, np.nan)


def log_between(low: Floats, high: Floats) -> Floats:
    """Return log(Phi(high) - Phi(low)), from the tail that both are closer to, so that no digits are lost."""
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    below, above = special.log_ndtr(low), special.log_ndtr(high)
    with np.errstate(invalid="ignore"):  # -inf minus -inf, where both are far out
        return np.asarray(above + np.log1p(-np.exp(np.minimum(below - above, -1e-300))))
