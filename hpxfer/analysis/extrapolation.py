"""Held-out extrapolation: what the smaller shapes say of the largest one, against what was measured there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.bootstrap import SeedNoise, draw_optima, pool_noise, scatter_ratio
from hpxfer.analysis.cube import Floats
from hpxfer.analysis.drift import TINY
from hpxfer.analysis.estimate import estimate, fitted
from hpxfer.analysis.power_fit import fit_power
from hpxfer.analysis.scaling_fit import LAW_SHAPES, pooled_noise
from hpxfer.analysis.thresholds import CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The largest shape of one axis and parameterization, predicted from the others. Intervals are 95%."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    shape: str = ""
    scale: float | None = None
    num_shapes: int = 0  # that the prediction rests on
    predicted_log2: float | None = None  # the optimum
    predicted_low: float | None = None
    predicted_high: float | None = None
    measured_log2: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    hp_agrees: bool | None = None  # the difference is within the errors of both; None without errors
    predicted_loss: float | None = None  # nats, at the transferred HP
    loss_low: float | None = None
    loss_high: float | None = None
    measured_loss: float | None = None
    loss_agrees: bool | None = None
    regret_nats: float | None = None  # at the grid value closest to the predicted optimum, over the best there
    why_no_hp: str | None = None
    why_no_loss: str | None = None
    why_not: str | None = None  # neither can be said


def noise_of_smaller(groups: Sequence[Sequence[Basin]]) -> SeedNoise | None:
    """Return the seeds' noise pooled over groups of basins by scale, each without its largest shape."""
    fits = [fitted(one[:-1]) for one in groups if len(one) > 1]
    return pool_noise([(one.cube, one.fit) for one in fits if one.fit is not None])


def held_out(group: Sequence[Basin], value: float | None, noise: SeedNoise | None, hp: str) -> HeldOut:
    """Return the largest shape of a group (basins by scale) as the others predict it, and as it was measured.

    `value` is the transferred HP, at which losses are compared; `noise` is that of `noise_of_smaller`.
    """
    last = group[-1]
    bare = HeldOut(
        axis=last.axis,
        scale_name=last.scale_name,
        parameterization=last.parameterization,
        hp=hp,
        shape=last.shape,
        scale=last.scale,
        num_shapes=len(group) - 1,
    )
    if len(group) < 3:
        return replace(bare, why_not=f"{len(group) - 1} smaller shapes, 2 are needed")
    out = _loss(_hp(bare, group, noise), group, value)
    both = out.why_no_hp and out.why_no_loss
    return replace(out, why_not=f"HP: {out.why_no_hp}; loss: {out.why_no_loss}") if both else out


def _hp(bare: HeldOut, group: Sequence[Basin], noise: SeedNoise | None) -> HeldOut:
    """Return `bare` with the optimum as the line through the other shapes' optima has it, and as measured."""
    rest, whole = fitted(group[:-1]), fitted(group)
    optima = estimate(rest, noise).optima
    measured = estimate(whole, noise).optima[-1]
    bare = replace(
        bare,
        measured_log2=measured.log2_value if measured.kind == "interior" else None,
        measured_low=measured.low_log2,
        measured_high=measured.high_log2,
    )
    known = [i for i, one in enumerate(optima) if one.kind == "interior" and one.log2_value is not None]
    if len({group[i].scale for i in known}) < 2:
        return replace(bare, why_no_hp=f"{len(known)} smaller shapes have an optimum inside the grid, 2 are needed")
    x = np.log2([group[i].scale for i in known])
    y = np.array([optima[i].log2_value for i in known])
    target = math.log2(group[-1].scale)
    errors = [one for i in known if (one := optima[i].se_log2) is not None]
    at_known = [rest.at[i] for i in known if i in rest.at]
    if noise is None or rest.fit is None or len(errors) < len(known) or len(at_known) < len(known):
        predicted = float(_ahead(x, y, np.ones_like(x), target)[0])
        bare = replace(bare, predicted_log2=predicted)
        return replace(bare, regret_nats=_regret(group[-1], predicted))
    weight = 1 / np.maximum(np.array(errors), TINY) ** 2
    draws = draw_optima(rest.cube, rest.fit, noise)
    predicted, scatter = (float(one) for one in _ahead(x, y, weight, target))
    drawn_B, scatter_B = _ahead(x, draws.normal_BF[:, at_known] - y, weight, target)
    tail_B = np.sqrt(draws.freedom / np.random.default_rng(0).chisquare(draws.freedom, len(scatter_B)))
    ratio = scatter_ratio(scatter, scatter_B, tail_B) if len(known) > 2 else 1.0
    freedom = min(draws.freedom, len(known) - 2) if ratio > 1 else draws.freedom
    low, high = (float(np.quantile(drawn_B, stats.norm.cdf(side))) for side in (-1, 1))
    se = ratio * (high - low) / 2
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    agrees = None
    if bare.measured_log2 is not None and measured.se_log2 is not None:
        agrees = bool(abs(bare.measured_log2 - predicted) <= t * math.hypot(se, measured.se_log2))
    return replace(
        bare,
        predicted_log2=predicted,
        predicted_low=predicted - t * se,
        predicted_high=predicted + t * se,
        hp_agrees=agrees,
        regret_nats=_regret(group[-1], predicted),
    )


def _ahead(x: Floats, y: Floats, weight: Floats, target: float) -> tuple[Floats, Floats]:
    """Return what the weighted line through y (..., F) over x says at `target`, and the sum of squares about it."""
    dx = x - np.average(x, weights=weight)
    mean = np.average(y, weights=weight, axis=-1)
    dy = y - mean[..., None]
    slope = (dy * dx) @ weight / (weight @ dx**2)
    ahead = mean + slope * (target - np.average(x, weights=weight))
    return np.asarray(ahead), np.asarray(((dy - slope[..., None] * dx) ** 2) @ weight)


def _regret(basin: Basin, log2_value: float) -> float | None:
    """Return what the grid value closest to the prediction costs over the best of the grid; +inf if it diverges."""
    finite = [point.median for point in basin.points if point.median is not None and math.isfinite(point.median)]
    measured = [point for point in basin.points if point.median is not None]
    if not finite:
        return None
    chosen = min(measured, key=lambda point: abs(point.log2 - log2_value))
    return None if chosen.median is None else chosen.median - min(finite)


def _loss(bare: HeldOut, group: Sequence[Basin], value: float | None) -> HeldOut:
    """Return `bare` with the loss at the transferred HP as the others predict it, and as measured.

    By a saturating power law of the scale from LAW_SHAPES shapes on, by a straight line over log2 scale below that.
    """
    cells = [basin.point(value) for basin in group]
    whole = [cell is not None and bool(cell.finite) and len(cell.finite) == len(cell.losses) for cell in cells]
    losses = [list(cell.finite) for cell, ok in zip(cells, whole, strict=True) if ok and cell is not None]
    x = np.log2([basin.scale for basin, ok in zip(group, whole, strict=True) if ok])
    if not whole[-1]:
        return replace(bare, why_no_loss="the largest shape has no finite loss at the transferred HP")
    bare = replace(bare, measured_loss=float(np.mean(losses[-1])))
    if len(set(x[:-1].tolist())) < 2:
        return replace(bare, why_no_loss="fewer than 2 smaller shapes have finite losses at the transferred HP")
    y = np.array([np.mean(one) for one in losses])
    noise, freedom = pooled_noise(losses)
    se = None if noise is None else noise / np.sqrt([len(one) for one in losses])
    draws = _law(x, y, se, freedom) if len(x) > LAW_SHAPES else None
    if draws is None:
        predicted, half = _straight(x, y, se, freedom)
        low, high = (None, None) if half is None else (predicted - half, predicted + half)
    else:
        predicted = float(draws[0])
        low, high = (float(end) for end in np.quantile(draws[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    agrees = None if low is None or high is None else bool(low <= float(y[-1]) <= high)
    return replace(bare, predicted_loss=predicted, loss_low=low, loss_high=high, loss_agrees=agrees)


def _law(x: Floats, y: Floats, se: Floats | None, freedom: int) -> Floats | None:
    """Return the law's prediction at the last point and draws of what would be measured there; None without a law."""
    fit = fit_power(x[:-1], y[:-1], None if se is None else se[:-1], freedom)
    if fit.at_end:
        return None
    draws = fit.loss(float(x[-1]))
    noise = fit.noise if se is None else float(se[-1]) * fit.widened
    if noise is None:
        return None
    draws[1:] += noise * np.random.default_rng(1).standard_t(fit.freedom, draws.size - 1)
    return draws


def _straight(x: Floats, y: Floats, se: Floats | None, freedom: int) -> tuple[float, float | None]:
    """Return a straight line's prediction at the last point and half of its 95% interval; None without an error."""
    predicted, squares = (float(one) for one in _ahead(x[:-1], y[:-1], np.ones(x.size - 1), float(x[-1])))
    dx = x[:-1] - x[:-1].mean()
    lever = 1 / dx.size + float((x[-1] - x[:-1].mean()) ** 2 / (dx @ dx))
    found = []
    if se is not None:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
        found.append(t * math.sqrt(float(np.mean(se[:-1] ** 2)) * lever + float(se[-1]) ** 2))
    if dx.size > 2:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, dx.size - 2))
        found.append(t * math.sqrt(squares / (dx.size - 2) * (lever + 1)))
    return predicted, max(found, default=None)
