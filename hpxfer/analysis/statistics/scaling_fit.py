"""Scaling fits: loss against parameters at the transferred HP, as a line over the log and as a saturating power law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from scipy import stats

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.power_law_fit import fit_power
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import transferred
from hpxfer.verdict.thresholds import CONFIDENCE

Count = Literal["total", "active", "total without embedding", "active without embedding"]
COUNTS: tuple[Count, ...] = ("total", "active", "total without embedding", "active without embedding")
LAW_SHAPES = 4  # the law has three coefficients: with one more shape it can fail


@dataclass(frozen=True, kw_only=True)
class FitPoint:
    """One shape: its number of parameters, counted as the fit says, and its loss, mean over seeds."""

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


Fit = TypeVar("Fit", LossFit, PowerLaw)


def loss_fit(points: Sequence[FitPoint], blank: LossFit) -> LossFit:
    """Return `blank` with the line through the losses of distinct shapes over log2 parameters."""
    blank = replace(blank, points=tuple(points))
    x, y = np.log2([point.params for point in points]), np.array([point.loss for point in points])
    if len(set(x.tolist())) < 2:
        return replace(blank, why_not=f"{len(set(x.tolist()))} different sizes have a finite loss, 2 are needed")
    dx, dy = x - x.mean(), y - y.mean()
    spread, rise = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / spread
    squares = float(np.sum((dy - slope * dx) ** 2))
    freedom = x.size - 2
    half = None
    if freedom:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(squares / freedom / spread)
    return replace(
        blank,
        slope=slope,
        slope_low=None if half is None else slope - half,
        slope_high=None if half is None else slope + half,
        intercept=float(y.mean() - slope * x.mean()),
        r2=1 - squares / rise if rise > 0 and freedom else None,
    )


def power_law(points: Sequence[FitPoint], freedom: int, blank: PowerLaw) -> PowerLaw:
    """Return `blank` with the law through the losses of distinct shapes.

    `freedom` is the degrees of freedom of the errors of the points.
    """
    blank = replace(blank, points=tuple(points))
    num = len({point.params for point in points})
    if num < LAW_SHAPES:
        return replace(blank, why_not=f"{num} different sizes have a finite loss, {LAW_SHAPES} are needed")
    x, y = np.log2([point.params for point in points]), np.array([point.loss for point in points])
    errors = [point.se for point in points if point.se]
    se = np.array(errors) if len(errors) == len(points) else None
    fit = fit_power(x, y, se, freedom)
    if fit.at_end:
        return replace(blank, why_not="the losses do not fall off like a power of the parameters")
    exponent, height = float(fit.exponent_R[0]), float(fit.height_R[0])
    low, high = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    floors, exponents = (np.quantile(draws[1:], [low, high]) for draws in (fit.floor_R, fit.exponent_R))
    rise = float(np.sum((y - y.mean()) ** 2))
    return replace(
        blank,
        floor=float(fit.floor_R[0]),
        log2_scale=fit.middle + math.log2(height) / exponent,
        exponent=exponent,
        floor_low=float(floors[0]),
        floor_high=float(floors[1]),
        exponent_low=float(exponents[0]),
        exponent_high=float(exponents[1]),
        r2=1 - float(np.sum(fit.residual_N**2)) / rise if rise > 0 else None,
        num_draws=fit.floor_R.size - 1,
    )


def pooled_noise(losses: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """Return the standard deviation of one seed's loss, pooled over shapes, and its degrees of freedom."""
    groups = [np.asarray(of_shape, dtype=float) for of_shape in losses if len(of_shape)]
    freedom = sum(group.size - 1 for group in groups)
    if not freedom:
        return None, 0
    return math.sqrt(sum(float(np.sum((group - group.mean()) ** 2)) for group in groups) / freedom), freedom


def loss_fits(inputs: Inputs) -> list[LossFit]:
    """Return the line for each parameterization and way to count parameters."""
    return _each(inputs, LossFit, lambda points, freedom, blank: loss_fit(points, blank))


def power_laws(inputs: Inputs) -> list[PowerLaw]:
    """Return the law for each parameterization and way to count parameters."""
    return _each(inputs, PowerLaw, power_law)


def _each(inputs: Inputs, kind: type[Fit], fit: Callable[[Sequence[FitPoint], int, Fit], Fit]) -> list[Fit]:
    out = []
    for label, (value, _) in inputs.once(transferred).over_all.items():
        for count in COUNTS:
            blank = kind(parameterization=label, hp=inputs.hp, value=value, count=count)
            no_value = replace(blank, why_not=NO_BASE_VALUE)
            out.append(no_value if value is None else fit(*_points(inputs, label, count), blank))
    return out


def _points(inputs: Inputs, label: str, count: Count) -> tuple[list[FitPoint], int]:
    """Return the distinct shapes with finite losses that trained on the base's schedule, by parameters.

    Also return the degrees of freedom of their errors.
    """
    known = inputs.once(transferred)
    _, every = known.over_all[label]
    base = next((trained.shape for trained in every if trained.row.is_base), None)
    schedule = None if base is None else (base.batch_tokens, base.steps)
    kept = [
        trained
        for trained in every
        if trained.cell.mean is not None and (trained.shape.batch_tokens, trained.shape.steps) == schedule
    ]
    noise, freedom = pooled_noise([trained.cell.losses for trained in kept])
    points = [
        FitPoint(
            shape=trained.row.shape,
            axis=trained.row.axis,
            params=known.params[trained.trials[0]][count],
            loss=trained.cell.mean or 0.0,
            se=None if noise is None else noise / len(trained.cell.losses) ** 0.5,
            num_seeds=len(trained.cell.losses),
        )
        for trained in kept
    ]
    return sorted((point for point in points if point.params > 0), key=lambda point: point.params), freedom


LOSS_FITS = Statistic(
    name="loss_fits",
    title="Loss against log parameters",
    note="A straight line; nats per doubling.",
    compute=loss_fits,
)
POWER_LAWS = Statistic(
    name="power_laws",
    title="Saturating power law",
    note="loss = floor + (2^log2_scale / parameters)^exponent; 95% intervals.",
    compute=power_laws,
)
