"""Held-out extrapolation: the largest shape as the smaller ones predict it, against what was measured there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.power_law_fit import fit_power
from hpxfer.analysis.statistics.scaling_fit import LAW_SHAPES, pooled_noise
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.verdict.drift import interval
from hpxfer.verdict.estimate import Estimates, estimate_all
from hpxfer.verdict.loss_grid import Floats, LossGrid, ShapeLosses
from hpxfer.verdict.thresholds import CONFIDENCE

FEWEST = 3  # smaller shapes: a line passes through any two, so that it predicts nothing that could fail


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The largest shape of one axis and parameterization, predicted from the others. Intervals are 95%."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    shape: str = ""
    scale: float | None = None
    num_shapes: int = 0  # that the prediction uses
    predicted_log2: float | None = None  # the optimum
    predicted_low: float | None = None
    predicted_high: float | None = None
    measured_log2: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    hp_agrees: bool | None = None  # whether the difference is within the errors of both; None without errors
    predicted_loss: float | None = None  # nats, at the transferred HP
    loss_low: float | None = None
    loss_high: float | None = None
    measured_loss: float | None = None
    loss_agrees: bool | None = None
    regret_nats: float | None = None  # of the HP of the grid closest to the predicted optimum
    why_no_hp: str | None = None
    why_no_loss: str | None = None
    why_not: str | None = None  # why there is neither prediction


def without_largest(grid: LossGrid) -> LossGrid | None:
    """Return all shapes of a grid but the largest; None if there is only one."""
    return replace(grid, rows=grid.rows[:-1]) if len(grid.rows) > 1 else None


def held_out(whole: Estimates, rest: Estimates | None, value: float | None, hp: str) -> HeldOut:
    """Return the largest shape of a grid as the others predict it, and as it was measured.

    `rest` are the estimates without the largest shape. `value` is the transferred HP, at which losses are compared.
    """
    rows = whole.grid.rows
    last = rows[-1]
    blank = HeldOut(
        axis=last.axis,
        scale_name=last.scale_name,
        parameterization=last.parameterization,
        hp=hp,
        shape=last.shape,
        scale=last.scale,
        num_shapes=len(rows) - 1,
    )
    if len(rows) <= FEWEST or rest is None:
        return replace(blank, why_not=f"{len(rows) - 1} smaller shapes, {FEWEST} are needed")
    out = _loss(_hp(blank, whole, rest), rows, value)
    both = out.why_no_hp and out.why_no_loss
    return replace(out, why_not=f"HP: {out.why_no_hp}; loss: {out.why_no_loss}") if both else out


def _hp(blank: HeldOut, whole: Estimates, rest: Estimates) -> HeldOut:
    """Return `blank` with the optimum as the line through the other shapes' optima predicts it, and as measured."""
    rows, measured = whole.grid.rows, whole.optima[-1]
    blank = replace(
        blank,
        measured_log2=measured.log2_value if measured.kind == "interior" else None,
        measured_low=measured.low_log2,
        measured_high=measured.high_log2,
    )
    known = [i for i, found in enumerate(rest.optima) if found.kind == "interior"]
    if len({rows[i].scale for i in known}) < 2:
        return replace(blank, why_no_hp=f"{len(known)} smaller shapes have an optimum inside the grid, 2 are needed")
    x = np.log2([rows[i].scale for i in known])
    ahead_B = _ahead(x, rest.optimum_BI[:, known], np.ones_like(x), math.log2(rows[-1].scale))[0]
    predicted = float(np.median(ahead_B))
    blank = replace(blank, predicted_log2=predicted, regret_nats=_regret(rows[-1], predicted))
    if not rest.has_noise:
        return blank
    low, high = interval(ahead_B, ahead_B)
    agrees = None
    if blank.measured_log2 is not None:
        # The draws of both are independent enough to pair them as they come.
        below, above = interval(*[ahead_B - whole.optimum_BI[:, -1]] * 2)
        agrees = below is not None and above is not None and below <= 0 <= above
    return replace(blank, predicted_low=low, predicted_high=high, hp_agrees=agrees)


def _ahead(x: Floats, y: Floats, weight: Floats, target: float) -> tuple[Floats, Floats]:
    """Return the weighted line through y (..., F) over x at `target`, and the weighted sum of squares about it."""
    dx = x - np.average(x, weights=weight)
    mean = np.average(y, weights=weight, axis=-1)
    dy = y - mean[..., None]
    slope = (dy * dx) @ weight / (weight @ dx**2)
    ahead = mean + slope * (target - np.average(x, weights=weight))
    return np.asarray(ahead), np.asarray(((dy - slope[..., None] * dx) ** 2) @ weight)


def _regret(row: ShapeLosses, log2_value: float) -> float | None:
    """Return the regret of the HP of the grid closest to the prediction; +inf if it diverges."""
    finite = [cell.median for cell in row.cells if cell.median is not None and math.isfinite(cell.median)]
    measured = [cell for cell in row.cells if cell.median is not None]
    if not finite:
        return None
    chosen = min(measured, key=lambda cell: abs(cell.log2 - log2_value))
    return None if chosen.median is None else chosen.median - min(finite)


def _loss(blank: HeldOut, rows: Sequence[ShapeLosses], value: float | None) -> HeldOut:
    """Return `blank` with the loss at the transferred HP as the others predict it, and as measured.

    LAW_SHAPES and more smaller shapes predict it by a saturating power law of the scale, fewer by a straight line over
    log2 scale.
    """
    cells = [(row, cell) for row in rows if (cell := row.cell(value)) is not None and cell.mean is not None]
    losses = [list(cell.finite) for _, cell in cells]
    x = np.log2([row.scale for row, _ in cells])
    if not cells or cells[-1][0] is not rows[-1]:
        return replace(blank, why_no_loss="the largest shape has no finite loss at the transferred HP")
    blank = replace(blank, measured_loss=float(np.mean(losses[-1])))
    if len(set(x[:-1].tolist())) < 2:
        return replace(blank, why_no_loss="fewer than 2 smaller shapes have finite losses at the transferred HP")
    y = np.array([np.mean(seeds) for seeds in losses])
    noise, freedom = pooled_noise(losses)
    se = None if noise is None else noise / np.sqrt([len(seeds) for seeds in losses])
    draws = _law(x, y, se, freedom) if len(x) > LAW_SHAPES else None
    if draws is None:
        predicted, half = _straight(x, y, se, freedom)
        low, high = (None, None) if half is None else (predicted - half, predicted + half)
    else:
        predicted = float(draws[0])
        low, high = (float(end) for end in np.quantile(draws[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    agrees = None if low is None or high is None else bool(low <= float(y[-1]) <= high)
    return replace(blank, predicted_loss=predicted, loss_low=low, loss_high=high, loss_agrees=agrees)


def _law(x: Floats, y: Floats, se: Floats | None, freedom: int) -> Floats | None:
    """Return the prediction of the law at the last point, then draws of a loss measured there; None without a law."""
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
    """Return the prediction of a straight line at the last point, and half of its 95% interval; None without errors."""
    predicted, squares = (float(number) for number in _ahead(x[:-1], y[:-1], np.ones(x.size - 1), float(x[-1])))
    dx = x[:-1] - x[:-1].mean()
    lever = 1 / dx.size + float((x[-1] - x[:-1].mean()) ** 2 / (dx @ dx))
    halves = []
    if se is not None:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
        halves.append(t * math.sqrt(float(np.mean(se[:-1] ** 2)) * lever + float(se[-1]) ** 2))
    if dx.size > 2:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, dx.size - 2))
        halves.append(t * math.sqrt(squares / (dx.size - 2) * (lever + 1)))
    return predicted, max(halves, default=None)


def _held_out(inputs: Inputs) -> list[HeldOut]:
    line = inputs.judged
    if line is None:
        return []
    grids = {key: rest for key, found in line.by_key.items() if (rest := without_largest(found.grid)) is not None}
    rests = dict(zip(grids, estimate_all(list(grids.values()), extra_sd=inputs.rules.extra_sd), strict=True))
    return [
        held_out(line.by_key[finding.key], rests.get(finding.key), finding.base_value, line.hp)
        for finding in line.report.findings
    ]


HELD_OUT = Statistic(
    name="held_out",
    title="Held-out extrapolation",
    note="The largest shape, predicted from the others and then compared.",
    compute=_held_out,
    of_lines=True,
)
