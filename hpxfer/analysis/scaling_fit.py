"""Scaling fits: loss against parameters at the transferred HP, as a line in the log and as a saturating power law."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from hpxfer.analysis.power_fit import fit_power
from hpxfer.analysis.thresholds import CONFIDENCE

Count = Literal["total", "active", "total without embedding", "active without embedding"]
COUNTS: tuple[Count, ...] = ("total", "active", "total without embedding", "active without embedding")
LAW_SHAPES = 4  # the law has three coefficients, and must be able to fail


@dataclass(frozen=True, kw_only=True)
class FitPoint:
    """One shape: its parameters, counted as the fit says, and its loss, mean over seeds."""

    shape: str
    axis: str
    params: float
    loss: float  # nats
    se: float | None  # from seeds, pooled over shapes; None with one seed
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class LossFit:
    """loss = intercept + slope log2(params), least squares over the shapes of all axes of one parameterization."""

    parameterization: str
    hp: str
    value: float | None  # of the HP, the same at every shape
    count: Count
    points: tuple[FitPoint, ...] = ()
    slope: float | None = None  # nats per doubling
    slope_low: float | None = None  # 95%, from the scatter about the line; None below three shapes
    slope_high: float | None = None
    intercept: float | None = None
    r2: float | None = None  # None below three points
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """loss = floor + (scale / params)^exponent, with 95% intervals from a bootstrap over seeds and residuals."""

    parameterization: str
    hp: str
    value: float | None
    count: Count
    points: tuple[FitPoint, ...] = ()
    floor: float | None = None  # nats
    log2_scale: float | None = None
    exponent: float | None = None
    floor_low: float | None = None
    floor_high: float | None = None
    exponent_low: float | None = None
    exponent_high: float | None = None
    r2: float | None = None
    num_draws: int = 0
    why_not: str | None = None

    def loss(self, params: float) -> float | None:
        """Return the fitted loss in nats; None without a fit."""
        if self.floor is None or self.log2_scale is None or self.exponent is None:
            return None
        return float(self.floor + (2.0**self.log2_scale / params) ** self.exponent)


def loss_fit(points: Sequence[FitPoint], bare: LossFit) -> LossFit:
    """Return `bare` with the line through the losses of distinct shapes over log2 parameters."""
    bare = replace(bare, points=tuple(points))
    x, y = np.log2([point.params for point in points]), np.array([point.loss for point in points])
    if len(set(x.tolist())) < 2:
        return replace(bare, why_not=f"{len(set(x.tolist()))} different sizes have a finite loss, 2 are needed")
    dx, dy = x - x.mean(), y - y.mean()
    spread, rise = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / spread
    left = float(np.sum((dy - slope * dx) ** 2))
    freedom = x.size - 2
    half = None
    if freedom:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(left / freedom / spread)
    return replace(
        bare,
        slope=slope,
        slope_low=None if half is None else slope - half,
        slope_high=None if half is None else slope + half,
        intercept=float(y.mean() - slope * x.mean()),
        r2=1 - left / rise if rise > 0 and freedom else None,
    )


def power_law(points: Sequence[FitPoint], freedom: int, bare: PowerLaw) -> PowerLaw:
    """Return `bare` with the law through the losses of distinct shapes; `freedom` is that of the points' errors."""
    bare = replace(bare, points=tuple(points))
    num = len({point.params for point in points})
    if num < LAW_SHAPES:
        return replace(bare, why_not=f"{num} different sizes have a finite loss, {LAW_SHAPES} are needed")
    x, y = np.log2([point.params for point in points]), np.array([point.loss for point in points])
    errors = [point.se for point in points if point.se]
    se = np.array(errors) if len(errors) == len(points) else None
    fit = fit_power(x, y, se, freedom)
    if fit.at_end:
        return replace(bare, why_not="the losses do not fall off like a power of the parameters")
    exponent, height = float(fit.exponent_R[0]), float(fit.height_R[0])
    low, high = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    floors, exponents = (np.quantile(draws[1:], [low, high]) for draws in (fit.floor_R, fit.exponent_R))
    rise = float(np.sum((y - y.mean()) ** 2))
    return replace(
        bare,
        floor=float(fit.floor_R[0]),
        log2_scale=fit.middle + math.log2(height) / exponent,
        exponent=exponent,
        floor_low=float(floors[0]),
        floor_high=float(floors[1]),
        exponent_low=float(exponents[0]),
        exponent_high=float(exponents[1]),
        r2=1 - float(np.sum(fit.left_N**2)) / rise if rise > 0 else None,
        num_draws=fit.floor_R.size - 1,
    )


def pooled_noise(losses: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """Return the standard deviation of one seed's loss, pooled over shapes, and its degrees of freedom."""
    groups = [np.asarray(one, dtype=float) for one in losses if len(one)]
    freedom = sum(one.size - 1 for one in groups)
    if not freedom:
        return None, 0
    return math.sqrt(sum(float(np.sum((one - one.mean()) ** 2)) for one in groups) / freedom), freedom
