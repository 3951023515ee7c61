"""Drift and move: how the optimum changes with scale, read from joint draws of the optima. How the regret changes.

A draw beyond the measured HPs says only on which side the optimum lies. It counts as unbounded there, so that the end
of an interval is open if bounds do not limit it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hpxfer.intervals import ENDS, Floats, half_width, interval
from hpxfer.verdict.thresholds import NOT_A_LINE

TINY = 1e-9  # octaves squared: a smaller variance is rounding


@dataclass(frozen=True, kw_only=True)
class Step:
    """The change of the optimum from one shape to the next larger one, in octaves, with its 95% interval."""

    start: float  # scale
    stop: float
    octaves: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Slope of log2(optimum) against log2(scale), in octaves per doubling: the least-squares line through all optima.

    The optima need not lie on a line. Then `is_line` is False, and `steps` say how they move.
    """

    octaves_per_doubling: float
    se: float | None  # None without the noise of seeds
    num_shapes: int  # that have an estimate
    left_out: tuple[str, ...] = ()  # shapes about which nothing is known
    bounds: tuple[str, ...] = ()  # shapes of which only a bound is known
    low: float | None = None  # the ends of the 95% interval; None on an open side, and if there is no interval
    high: float | None = None
    doublings: float = 0.0  # from the smallest to the largest scale that the slope rests on
    is_line: bool = True  # within the errors of the optima
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Move:
    """How far the optimum moves over the shapes that have one, in octaves. The interval holds 95%; None is an open end.

    It covers the difference of the largest and the smallest shape, the largest difference of any two shapes, and that
    of the line through all of them.
    """

    octaves: float  # from the smallest of these shapes to the largest
    low: float | None
    high: float | None
    scales: tuple[float, ...]  # of the shapes that it is about: those with an optimum, ascending
    is_line: bool  # whether the optima lie on a line in log2 scale, within their errors


@dataclass(frozen=True, kw_only=True)
class RegretTrend:
    """Does the regret of the transferred HP grow, and is it small against the gain from scaling?

    Slopes over log2 scale, in nats per doubling, over the shapes where both losses were measured.
    """

    regret_nats_per_doubling: float
    regret_se: float | None  # from the errors of the regrets; None with one seed
    gain_nats_per_doubling: float  # how fast the best loss falls; negative if it rises
    num_shapes: int

    @property
    def share_of_gain(self) -> float | None:
        """Growth of the regret per doubling, as a fraction of the gain in loss; None if doubling gains nothing."""
        if self.gain_nats_per_doubling <= 0:
            return None
        return self.regret_nats_per_doubling / self.gain_nats_per_doubling


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnOptima:
    """Draws of the optima of shapes, (B, I), in log2 HP, and the range that was measured at each shape."""

    optimum_BI: Floats
    first_I: Floats
    last_I: Floats

    @property
    def lowest_BI(self) -> Floats:
        """The smallest that each optimum may be, if it lies beyond the measured HPs: -inf below them."""
        inside_BI = np.minimum(self.optimum_BI, self.last_I)
        return np.where(self.optimum_BI < self.first_I, -np.inf, inside_BI)

    @property
    def highest_BI(self) -> Floats:
        inside_BI = np.maximum(self.optimum_BI, self.first_I)
        return np.where(self.optimum_BI > self.last_I, np.inf, inside_BI)

    def sums(self, weights_IQ: Floats) -> tuple[Floats, Floats]:
        """Return the smallest and the largest that weighted sums of the optima may be, (B, Q) each."""
        up_IQ, down_IQ = np.maximum(weights_IQ, 0.0), np.minimum(weights_IQ, 0.0)
        low_BQ = _dot(self.lowest_BI, up_IQ) + _dot(self.highest_BI, down_IQ)
        high_BQ = _dot(self.highest_BI, up_IQ) + _dot(self.lowest_BI, down_IQ)
        return low_BQ, high_BQ

    @classmethod
    def together(cls, parts: Sequence[DrawnOptima]) -> DrawnOptima:
        """Return joint draws of shapes side by side."""
        return cls(
            optimum_BI=np.concatenate([part.optimum_BI for part in parts], axis=1),
            first_I=np.concatenate([part.first_I for part in parts]),
            last_I=np.concatenate([part.last_I for part in parts]),
        )

    def of(self, shapes: Sequence[int]) -> DrawnOptima:
        """Return the draws of some of the shapes."""
        at = list(shapes)
        return DrawnOptima(optimum_BI=self.optimum_BI[:, at], first_I=self.first_I[at], last_I=self.last_I[at])


def _dot(values_BI: Floats, weights_IQ: Floats) -> Floats:
    """Return the matrix product in which an infinite value of weight 0 counts as 0."""
    finite_BI = np.isfinite(values_BI)
    sign_BQ = np.where(finite_BI, 0.0, np.sign(values_BI)) @ np.sign(weights_IQ)
    return np.where(sign_BQ != 0, np.copysign(np.inf, sign_BQ), np.where(finite_BI, values_BI, 0.0) @ weights_IQ)


def regret_trend(
    scales: Sequence[float],
    best: Sequence[float | None],
    regret: Sequence[float | None],
    se: Sequence[float | None],
) -> RegretTrend | None:
    """Return the trend over the shapes with a finite regret; None with fewer than two different scales.

    The slope is unweighted. The errors of all regrets propagate to it, that of the base included.
    """
    kept = [
        (math.log2(scale), loss, cost, math.nan if error is None else error)
        for scale, loss, cost, error in zip(scales, best, regret, se, strict=True)
        if loss is not None and cost is not None and math.isfinite(cost)
    ]
    if len({x for x, *_ in kept}) < 2:
        return None
    x, losses, costs, errors = (np.array(column, dtype=float) for column in zip(*kept, strict=True))
    lever = _lever(x)
    error = math.sqrt(float(lever**2 @ errors**2))
    return RegretTrend(
        regret_nats_per_doubling=float(lever @ costs),
        regret_se=None if math.isnan(error) else error,
        gain_nats_per_doubling=-float(lever @ losses),
        num_shapes=len(kept),
    )


def fit_drift(scales: Sequence[float], log2_optima: Sequence[float], left_out: tuple[str, ...] = ()) -> Drift | None:
    """Return the least-squares drift of log2 optima without errors; None with fewer than two different scales.

    The error comes from the scatter about the line, so fewer than three shapes give none.
    """
    if len(set(scales)) < 2:
        return None
    x, y = np.log2(scales), np.asarray(log2_optima)
    lever = _lever(x)
    slope, freedom = float(y @ lever), len(scales) - 2
    se = None
    if freedom:
        rest = y - y.mean() - slope * (x - x.mean())
        se = math.sqrt(float(rest @ rest) / freedom * float(lever @ lever))
    half = None if se is None else se * float(stats.t.ppf(ENDS[1], freedom))
    return Drift(
        octaves_per_doubling=slope,
        se=se,
        num_shapes=len(scales),
        left_out=left_out,
        low=None if half is None else slope - half,
        high=None if half is None else slope + half,
        doublings=float(np.ptp(x)),
    )


def draw_drift(
    scales: Sequence[float], drawn: DrawnOptima, bounds: tuple[str, ...], left_out: tuple[str, ...]
) -> Drift | None:
    """Return the drift of drawn optima, in the order of the scales; None with fewer than two different scales."""
    if len(set(scales)) < 2:
        return None
    x = np.log2(scales)
    lever = _lever(x)
    slope_B = drawn.optimum_BI @ lever
    low, high = interval(*(ends[:, 0] for ends in drawn.sums(lever[:, None])))
    return Drift(
        octaves_per_doubling=float(np.median(slope_B)),
        se=half_width(slope_B),
        num_shapes=len(scales) - len(bounds),
        left_out=left_out,
        bounds=bounds,
        low=low,
        high=high,
        doublings=float(np.ptp(x)),
        is_line=_is_line(x, drawn.optimum_BI),
        steps=_steps(scales, drawn),
    )


def draw_move(drift: Drift, drawn: DrawnOptima, scales: Sequence[float]) -> Move:
    """Return the move of drawn optima at these scales, which ascend."""
    num = drawn.optimum_BI.shape[1]
    later, earlier = np.tril_indices(num, -1)
    weights = np.zeros((num, later.size))
    weights[later, np.arange(later.size)], weights[earlier, np.arange(later.size)] = 1.0, -1.0
    low_BQ, high_BQ = drawn.sums(weights)
    widest_B = np.argmax(np.abs(drawn.optimum_BI[:, later] - drawn.optimum_BI[:, earlier]), axis=1)
    at = np.arange(len(widest_B))
    ends = int(np.flatnonzero((later == num - 1) & (earlier == 0))[0])
    found = [interval(low_BQ[:, ends], high_BQ[:, ends]), interval(low_BQ[at, widest_B], high_BQ[at, widest_B])]
    line = [None if end is None else end * drift.doublings for end in (drift.low, drift.high)]
    lows, highs = [*(low for low, _ in found), line[0]], [*(high for _, high in found), line[1]]
    return Move(
        octaves=float(np.median(drawn.optimum_BI[:, -1] - drawn.optimum_BI[:, 0])),
        low=None if None in lows else min(low for low in lows if low is not None),
        high=None if None in highs else max(high for high in highs if high is not None),
        scales=tuple(scales),
        is_line=drift.is_line,
    )


def _lever(x: Floats) -> Floats:
    """Return the weights of values at x whose sum is the slope of their least-squares line."""
    return np.asarray((x - x.mean()) / float(np.sum((x - x.mean()) ** 2)))


def _is_line(x: Floats, optimum_BI: Floats) -> bool:
    """Return whether the optima scatter about their line by no more than their errors explain (Hotelling's test)."""
    if x.size < 3:
        return True
    centered = x - x.mean()
    rest_BI = optimum_BI - optimum_BI.mean(axis=1, keepdims=True) - (optimum_BI @ _lever(x))[:, None] * centered
    mean_I = np.median(rest_BI, axis=0)
    sizes, axes = np.linalg.eigh(np.cov(rest_BI.T))
    good = sizes > max(TINY, 1e-6 * float(sizes.max()))
    if not good.any():
        return bool(np.abs(mean_I).max() < math.sqrt(TINY))
    squares = float((((mean_I @ axes)[good]) ** 2 / sizes[good]).sum())
    return bool(stats.chi2.sf(squares, int(good.sum())) >= NOT_A_LINE)


def _steps(scales: Sequence[float], drawn: DrawnOptima) -> tuple[Step, ...]:
    num = len(scales)
    weights = np.eye(num)[:, 1:] - np.eye(num)[:, :-1]
    low_BQ, high_BQ = drawn.sums(weights)
    change_BQ = np.diff(drawn.optimum_BI, axis=1)
    ends = [interval(low_B, high_B) for low_B, high_B in zip(low_BQ.T, high_BQ.T, strict=True)]
    return tuple(
        Step(
            start=scales[q],
            stop=scales[q + 1],
            octaves=float(np.median(change_BQ[:, q])),
            low=ends[q][0],
            high=ends[q][1],
        )
        for q in range(num - 1)
    )
