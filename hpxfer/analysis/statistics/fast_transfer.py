"""Fast transfer: does the regret of a smaller shape's optimum vanish faster with scale than the loss gap does?

arXiv 2512.22768 calls a transfer fast if the suboptimality that it induces vanishes asymptotically faster than the
performance gap of a finite scale. A sweep does not contain the limit, and its largest shape N cannot replace it: both
quantities are 0 at N by definition, and an optimum that drifts steadily has a regret of (log N/n)^2 at N, which falls
faster than a loss gap that is linear in log n.

So powers are fitted that have a limit of their own. The distance of an optimum from that of N is proportional to
n^-p - N^-p, the loss gap to n^-q - N^-q, and the regret goes as the distance squared, as n^-2p. Transfer is fast if
2p > q and p > 0. With p <= 0 optima do not converge at all; p = 0 is a steady drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.verdict.basins import rise_of_each
from hpxfer.verdict.estimate import Estimates
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.thresholds import CONFIDENCE

TELLS = 2.0  # a wider interval of the excess power holds what tables, and what a steady drift, would have
ROUNDING = 1e-12  # nats: a smaller regret is that of rounding
POWERS = np.linspace(-4.0, 8.0, 240)  # that are searched; none of them is 0, where the formula is undefined


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

    Slopes are of log2 nats per doubling of the scale, measured from the largest shape; a negative one falls. Powers are
    those of the scale, and account for the distance of the largest shape from the limit.
    """

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    largest: str = ""  # shape
    points: tuple[FastPoint, ...] = ()
    regret_slope: float | None = None
    gap_slope: float | None = None
    optimum_power: float | None = None  # p: optima converge as scale^-p; 0 is a steady drift
    power_low: float | None = None  # 95%, from draws of optima and losses, as that of the excess
    power_high: float | None = None
    gap_power: float | None = None  # q: losses converge as scale^-q
    excess_low: float | None = None  # of 2p - q
    excess_high: float | None = None
    fast: bool | None = None  # True if surely, False if surely not; None if unknown, or without a sure regret
    why_not: str | None = None


def fast_transfer(estimates: Estimates, hp: str) -> FastTransfer:
    """Return the regrets of the smaller shapes' optima at the largest shape, and how they fall with scale."""
    rows = estimates.grid.rows
    last, largest = rows[-1], len(rows) - 1
    blank = FastTransfer(
        axis=last.axis, scale_name=last.scale_name, parameterization=last.parameterization, hp=hp, largest=last.shape
    )
    inside = [i for i, optimum in enumerate(estimates.optima) if optimum.kind == "interior"]
    if largest not in inside:
        return replace(blank, why_not="the largest shape has no optimum inside the grid")
    losses = np.median(estimates.lowest_BI, axis=0)
    smaller = [i for i in inside if rows[i].scale < last.scale and losses[i] > losses[largest]]
    if len({rows[i].scale for i in smaller}) < 2:
        return replace(blank, why_not="fewer than two smaller shapes have an optimum inside the grid and a higher loss")
    regret_BI = _regrets(estimates, smaller)
    regret_I = np.median(regret_BI, axis=0)
    gap_I = losses[smaller] - losses[largest]
    x, target = np.log2([rows[i].scale for i in smaller]), math.log2(last.scale)
    gap_slope = float(_slope(x, np.log2(gap_I)[None])[0])
    regret_slope = float(_slope(x, np.log2(np.maximum(regret_I, ROUNDING))[None])[0])
    power, gap_power = (float(_power(x, target, np.array([at]))[0]) for at in (regret_slope / 2, gap_slope))
    low_I = high_I = None
    drawn: dict[str, float | bool | None] = {}
    if estimates.has_noise:
        ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        low_I, high_I = np.quantile(regret_BI, ends, axis=0)
        distance_BI = estimates.optimum_BI[:, smaller] - estimates.optimum_BI[:, [largest]]
        gap_BI = estimates.lowest_BI[:, smaller] - estimates.lowest_BI[:, [largest]]
        log_BI = [np.log2(np.maximum(nats_BI, ROUNDING)) for nats_BI in (regret_BI, gap_BI)]
        power_B, gap_B = (_power(x, target, _slope(x, y) / by) for y, by in zip(log_BI, (2, 1), strict=True))
        seen = bool(np.prod(np.quantile(distance_BI, ends, axis=0), 0).max() > 0)
        drawn = _answer(power_B, 2 * power_B - gap_B, seen=seen)
        below, above = drawn["excess_low"], drawn["excess_high"]
        if drawn["fast"] is None and below is not None and above is not None and above - below > TELLS:
            why_not = f"the losses do not tell: the excess power lies between {below:.2g} and {above:.2g}"
            return replace(blank, why_not=why_not)
    return replace(
        blank,
        points=tuple(
            FastPoint(
                shape=rows[i].shape,
                scale=rows[i].scale,
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
        **drawn,  # type: ignore[arg-type]
    )


def _answer(power_B: Floats, excess_B: Floats, *, seen: bool) -> dict[str, float | bool | None]:
    """Return the intervals and the answer. `seen`: an optimum surely differs from that of the largest shape."""
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
    """Return the powers p for which n^-p - N^-p has these slopes in log-log over n, (B,).

    At a power of 0 it is log N/n. The slope falls with p.
    """
    ahead = (target - x) * math.log(2)
    slope_P = _slope(x, np.log2(np.expm1(POWERS[:, None] * ahead) / POWERS[:, None]))
    return np.interp(-slope_B, -slope_P, POWERS)


def _regrets(estimates: Estimates, smaller: Sequence[int]) -> Floats:
    """Return draws of the regrets of the smaller shapes' optima at the largest shape, (B, I), by its drawn basins."""
    found, at = estimates.posterior, int(estimates.index_I[-1])
    distance_BI = estimates.optimum_BI[:, list(smaller)] - estimates.optimum_BI[:, -1:]
    return np.asarray(found.curvature_BI[:, at, None] * rise_of_each(distance_BI, found.form_BI[:, at]))


def _slope(x: Floats, y_BI: Floats) -> Floats:
    dx = x - x.mean()
    return np.asarray(y_BI @ dx / float(dx @ dx))


def _fast(inputs: Inputs) -> list[FastTransfer]:
    return [
        fast_transfer(line.by_key[finding.key], line.hp) for line in inputs.lines for finding in line.report.findings
    ]


FAST = Statistic(
    name="fast",
    title="Is the transfer fast?",
    note="Whether the regret of the transferred HP vanishes faster with scale than the loss gap does (arXiv "
    "2512.22768). Slopes of log2 nats per doubling, measured from the largest shape. The powers account for its own "
    "distance from the limit: optima converge as scale^-p, losses as scale^-q. Fast is 2p > q and p > 0 (p = 0 is a "
    "steady drift); excess is 2p - q.",
    compute=_fast,
)
