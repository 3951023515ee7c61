"""Fast transfer: does what a smaller shape's optimum costs at the largest one vanish faster than the loss gap to it?

As arXiv 2512.22768 has it: tuned at scale n and used at the largest scale N, an HP costs the regret loss_N(optimum_n) -
loss_N(optimum_N); the gap is loss_n(optimum_n) - loss_N(optimum_N). Transfer is fast if the regret falls off with n by
a higher power than the gap: tuning small then costs less than it saves. Slopes are those of the logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.bootstrap import SeedNoise, draw_optima
from hpxfer.analysis.cube import Floats
from hpxfer.analysis.estimate import Fitted, estimate, fitted
from hpxfer.analysis.thresholds import CONFIDENCE

ROUNDING = 1e-12  # nats: below, a regret is that of the last bit


@dataclass(frozen=True, kw_only=True)
class FastPoint:
    """A smaller shape against the largest one, in nats. The interval of the regret is 95%, from draws of the optima."""

    shape: str
    scale: float
    regret_nats: float
    regret_low: float | None
    regret_high: float | None
    gap_nats: float


@dataclass(frozen=True, kw_only=True)
class FastTransfer:
    """One parameterization along one axis. Slopes are of log2 nats per doubling of the scale; negative is falling."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    largest: str = ""  # shape
    points: tuple[FastPoint, ...] = ()
    regret_slope: float | None = None
    gap_slope: float | None = None
    excess_low: float | None = None  # 95% interval of regret_slope - gap_slope, from draws of optima and losses
    excess_high: float | None = None
    fast: bool | None = None  # the regret surely falls faster, or surely slower; None: not told apart
    why_not: str | None = None


def fast_transfer(group: Sequence[Basin], noise: SeedNoise | None, hp: str) -> FastTransfer:
    """Return what the optima of a group's smaller shapes (basins by scale) cost at its largest one."""
    last = group[-1]
    bare = FastTransfer(
        axis=last.axis, scale_name=last.scale_name, parameterization=last.parameterization, hp=hp, largest=last.shape
    )
    one = fitted(group)
    optima = estimate(one, noise).optima
    inside = [i for i in one.at if optima[i].kind == "interior"]
    if len(group) - 1 not in inside:
        return replace(bare, why_not="the largest shape has no optimum inside the grid")
    smaller = [i for i in inside if group[i].scale < last.scale]
    losses = {i: _lowest(one, i) for i in (*smaller, len(group) - 1)}
    smaller = [i for i in smaller if losses[i] > losses[len(group) - 1]]
    if len({group[i].scale for i in smaller}) < 2:
        return replace(bare, why_not="fewer than two smaller shapes have an optimum inside the grid and a higher loss")
    draws = None if one.fit is None or noise is None else draw_optima(one.cube, one.fit, noise)
    regret_I = _regrets(one, smaller, None)[0]
    gap_I = np.array([losses[i] for i in smaller]) - losses[len(group) - 1]
    x = np.log2([group[i].scale for i in smaller])
    gap_slope = float(_slope(x, np.log2(gap_I)[None])[0])
    regret_slope = float(_slope(x, np.log2(np.maximum(regret_I, ROUNDING))[None])[0])
    ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low_I = high_I = excess = None
    if draws is not None:
        drawn_BI = _regrets(one, smaller, draws.normal_BF)
        low_I, high_I = np.quantile(drawn_BI, ends, axis=0)
        change_BI = draws.change_BF[:, [one.at[i] for i in smaller]] - draws.change_BF[:, [one.at[len(group) - 1]]]
        slopes = [_slope(x, np.log2(np.maximum(nats_BI, ROUNDING))) for nats_BI in (drawn_BI, gap_I + change_BI)]
        excess = np.quantile(slopes[0] - slopes[1], ends)
    return replace(
        bare,
        points=tuple(
            FastPoint(
                shape=group[i].shape,
                scale=group[i].scale,
                regret_nats=float(regret_I[n]),
                regret_low=None if low_I is None else float(low_I[n]),
                regret_high=None if high_I is None else float(high_I[n]),
                gap_nats=float(gap_I[n]),
            )
            for n, i in enumerate(smaller)
        ),
        regret_slope=regret_slope,
        gap_slope=gap_slope,
        excess_low=None if excess is None else float(excess[0]),
        excess_high=None if excess is None else float(excess[1]),
        fast=None if excess is None or excess[0] <= 0 <= excess[1] else bool(excess[1] < 0),
    )


def _lowest(one: Fitted, i: int) -> float:
    assert one.fit is not None
    f = one.at[i]
    return float(one.fit.loss(f, one.fit.optima()[f : f + 1])[0])


def _regrets(one: Fitted, smaller: Sequence[int], draws_BF: Floats | None) -> Floats:
    """Return the regrets, (B, I), by the curvature of the largest shape's basin at its lowest point."""
    assert one.fit is not None
    fit, f = one.fit, one.at[len(one.group) - 1]
    optima_BF = fit.optima()[None] if draws_BF is None else draws_BF
    _, c, d = (float(part[f]) for part in fit.parts(fit.coefficients_P))
    curvature = max(c + 3 * d * float(fit.optima()[f] - fit.center_F[f]), 0.0)
    away_BI = optima_BF[:, [one.at[i] for i in smaller]] - optima_BF[:, f : f + 1]
    return np.asarray(curvature * away_BI**2)


def _slope(x: Floats, y_BI: Floats) -> Floats:
    dx = x - x.mean()
    return np.asarray(y_BI @ dx / float(dx @ dx))
