"""Fast transfer: does what a smaller shape's optimum costs vanish faster with scale than the loss gap does?

arXiv 2512.22768 calls a transfer fast if the suboptimality that it induces vanishes asymptotically faster than the
performance gap of a finite scale. The limit is not in a sweep, and its largest shape N may not stand for it: measured
from there, both are 0 at N, and an optimum that drifts steadily costs (log N/n)^2 at N, which falls faster than a loss
gap that is linear in log n. So powers are fitted that have a limit of their own: optima at a distance in proportion to
n^-p - N^-p from that of N, losses to n^-q - N^-q, and the regret goes as the distance squared, as n^-2p. Transfer is
fast if 2p > q and p > 0; with p <= 0 optima do not converge at all, and p = 0 is a steady drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.bootstrap import SeedNoise, draw_optima
from hpxfer.analysis.cube import Floats
from hpxfer.analysis.estimate import Fitted, estimate, fitted
from hpxfer.analysis.thresholds import CONFIDENCE

ROUNDING = 1e-12  # nats: below, a regret is that of the last bit
POWERS = np.linspace(-4.0, 8.0, 240)  # that are looked through; none of them is 0, where the formula has no value


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
    """One parameterization along one axis.

    Slopes are of log2 nats per doubling of the scale, measured from the largest shape; negative is falling. Powers are
    those of the scale, with the limit taken off.
    """

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    largest: str = ""  # shape
    points: tuple[FastPoint, ...] = ()
    regret_slope: float | None = None
    gap_slope: float | None = None
    optimum_power: float | None = None  # p: optima close in as scale^-p; 0 is a steady drift, below it speeds up
    power_low: float | None = None  # 95%, from draws of optima and losses, as the next
    power_high: float | None = None
    gap_power: float | None = None  # q: losses close in as scale^-q
    excess_low: float | None = None  # of 2p - q
    excess_high: float | None = None
    fast: bool | None = None  # surely, or surely not; None: not told, or no regret that is surely above 0
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
    x, target = np.log2([group[i].scale for i in smaller]), math.log2(last.scale)
    gap_slope = float(_slope(x, np.log2(gap_I)[None])[0])
    regret_slope = float(_slope(x, np.log2(np.maximum(regret_I, ROUNDING))[None])[0])
    power, gap_power = (float(_power(x, target, np.array([at]))[0]) for at in (regret_slope / 2, gap_slope))
    low_I = high_I = None
    told: dict[str, float | bool | None] = {}
    if draws is not None:
        ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        drawn_BI = _regrets(one, smaller, draws.normal_BF)
        low_I, high_I = np.quantile(drawn_BI, ends, axis=0)
        away_BI = draws.normal_BF[:, [one.at[i] for i in smaller]] - draws.normal_BF[:, [one.at[len(group) - 1]]]
        change_BI = draws.change_BF[:, [one.at[i] for i in smaller]] - draws.change_BF[:, [one.at[len(group) - 1]]]
        log_BI = [np.log2(np.maximum(nats_BI, ROUNDING)) for nats_BI in (drawn_BI, gap_I + change_BI)]
        power_B, gap_B = (_power(x, target, _slope(x, y) / by) for y, by in zip(log_BI, (2, 1), strict=True))
        told = _told(power_B, 2 * power_B - gap_B, seen=bool(np.prod(np.quantile(away_BI, ends, axis=0), 0).max() > 0))
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
        optimum_power=power,
        gap_power=gap_power,
        **told,  # type: ignore[arg-type]
    )


def _told(power_B: Floats, excess_B: Floats, *, seen: bool) -> dict[str, float | bool | None]:
    """Return the intervals and the answer; `seen` if an optimum is surely away from that of the largest shape."""
    ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    (low, high), (below, above) = (np.quantile(drawn_B, ends).tolist() for drawn_B in (power_B, excess_B))
    surely_not = seen and (above < 0 or high < 0)
    return {
        "power_low": low,
        "power_high": high,
        "excess_low": below,
        "excess_high": above,
        "fast": True if below > 0 and low > 0 else (False if surely_not else None),
    }


def _power(x: Floats, target: float, slope_B: Floats) -> Floats:
    """Return the powers p with which n^-p - N^-p falls by such slopes in the logs of n and itself, (B,).

    At a power of 0 that is log N/n; the slope falls with p.
    """
    ahead = (target - x) * math.log(2)
    slope_P = _slope(x, np.log2(np.expm1(POWERS[:, None] * ahead) / POWERS[:, None]))
    return np.interp(-slope_B, -slope_P, POWERS)


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
