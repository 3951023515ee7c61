"""Estimates: the optima of one parameterization along one axis, with their intervals, and the drift through them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpxfer.verdict.bootstrap import Draws, SeedNoise, draw_optima, pool_noise
from hpxfer.verdict.drift import Drift, Observed, fit_drift, fit_observed
from hpxfer.verdict.local_fit import LocalFit, fit_local
from hpxfer.verdict.loss_grid import Floats, LossGrid
from hpxfer.verdict.optimum import Kind, Optimum, measured_optimum, open_because

FLAT = "the loss does not bend by more than seeds differ: a wider grid or more seeds are needed"


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """Losses and their fit, before the noise of seeds is known."""

    grid: LossGrid
    fit: LocalFit | None  # None if no shape has three stable cells

    @cached_property
    def at(self) -> dict[int, int]:
        """The index of a shape in the grid -> its index in the fit, for each fitted shape."""
        return {} if self.fit is None else {int(i): f for f, i in enumerate(self.fit.rows_F)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """What is known of one grid: its fit, the draws of the fitted optima, the optimum of each row, and the drift."""

    fitted: Fitted
    draws: Draws | None  # None without noise of seeds, or without a fit
    optima: tuple[Optimum, ...]  # in the order of the rows
    drift: Drift | None


@dataclass(frozen=True, kw_only=True)
class _Bracket:
    """The measured cells around the optimum of a fitted shape, in log2 HP."""

    kind: Kind
    here: float  # the cell closest to the fitted optimum
    below: float | None  # the measured neighbor below; None if there is none
    above: float | None
    diverges_below: bool
    diverges_above: bool

    @property
    def low(self) -> float:
        """The lowest HP that the optimum may be: halfway to a worse neighbor, or as far as one that diverges."""
        if self.below is None:
            return -math.inf
        return self.below if self.diverges_below else (self.below + self.here) / 2

    @property
    def high(self) -> float:
        if self.above is None:
            return math.inf
        return self.above if self.diverges_above else (self.above + self.here) / 2


def fit_grid(grid: LossGrid) -> Fitted:
    """Return a grid with its fit."""
    return Fitted(grid=grid, fit=fit_local(grid))


def estimate_all(grids: Sequence[LossGrid]) -> tuple[Estimates, ...]:
    """Return the estimates of every grid. The noise of seeds is pooled over all of them."""
    fits = [fit_grid(grid) for grid in grids]
    noise = noise_of(fits)
    return tuple(estimate(fitted, noise) for fitted in fits)


def noise_of(fits: Iterable[Fitted]) -> SeedNoise | None:
    """Return the noise of seeds, pooled over fits; None if no fitted shape has two seeds."""
    return pool_noise([(fitted.grid, fitted.fit) for fitted in fits if fitted.fit is not None])


def estimate(fitted: Fitted, noise: SeedNoise | None) -> Estimates:
    """Return the optima and their drift. Without noise (one seed), only bounds have an interval."""
    draws = None if fitted.fit is None or noise is None else draw_optima(fitted.grid, fitted.fit, noise)
    curved = {i: f for i, f in fitted.at.items() if draws is None or not draws.flat_F[f]}
    brackets = {i: _bracket(fitted, i, f) for i, f in curved.items()}
    optima = tuple(_optimum(fitted, i, brackets.get(i), draws) for i in range(len(fitted.grid.rows)))
    return Estimates(fitted=fitted, draws=draws, optima=optima, drift=_drift(fitted, optima, brackets, draws))


def _bracket(fitted: Fitted, i: int, f: int) -> _Bracket:
    assert fitted.fit is not None
    x, grid = fitted.grid.x_K, fitted.grid
    cells = np.flatnonzero(grid.basin_IK[i])
    here = int(cells[np.argmin(np.abs(x[cells] - fitted.fit.optima()[f]))])
    lost_K = grid.diverges_IK[i] | grid.cliffs_IK[i]
    measured = np.flatnonzero(grid.num_seeds_IK[i])
    below, above = measured[measured < here][-1:], measured[measured > here][:1]
    diverges = [bool(beside.size) and bool(lost_K[beside[0]]) for beside in (below, above)]
    kind: Kind = "interior"
    if not below.size or not above.size:
        kind = "upper_edge" if below.size else "lower_edge"
    elif any(diverges):
        kind = "at_divergence"
    return _Bracket(
        kind=kind,
        here=float(x[here]),
        below=float(x[below[0]]) if below.size else None,
        above=float(x[above[0]]) if above.size else None,
        diverges_below=diverges[0],
        diverges_above=diverges[1],
    )


def _optimum(fitted: Fitted, i: int, bracket: _Bracket | None, draws: Draws | None) -> Optimum:
    """Return the optimum of shape `i`. A shape with fewer than three stable cells has that of its medians, no error."""
    grid, row = fitted.grid, fitted.grid.rows[i]
    plain = measured_optimum(row)
    if i in fitted.at and bracket is None:
        return replace(plain, kind="none", log2_value=None, open_because=FLAT)
    if bracket is None or fitted.fit is None:
        return plain
    f, fit = fitted.at[i], fitted.fit
    x = grid.x_K[fit.cell_N[np.flatnonzero(fit.shape_N == f)]]
    best = float(x[np.argmin(fit.loss(f, x))])
    at = float(fit.optima()[f])
    _, c, d = (float(part[f]) for part in fit.parts(fit.coefficients_P))
    low, high = _interval(bracket, None if draws is None else draws.interval_2F[:, f])
    measured = grid.x_K[np.flatnonzero(grid.num_seeds_IK[i])]
    low = None if low is None or low < measured[0] else low  # an interval that leaves the grid is open there
    high = None if high is None or high > measured[-1] else high
    planned = list(np.log2([cell.value for cell in row.cells]))  # equal to the grid's x_K to the last bit
    estimated = bracket.kind in ("interior", "at_divergence")
    return replace(
        plain,
        kind=bracket.kind,
        log2_value=_clipped(at, bracket) if estimated else bracket.here,
        grid_value=row.cells[planned.index(best)].value,
        open_because=open_because(bracket.kind, row, planned.index(bracket.here)),
        low_log2=low,
        high_log2=high,
        se_log2=float(draws.se_F[f]) if draws is not None and bracket.kind == "interior" else None,
        curvature=c + 3 * d * (at - float(fit.center_F[f])),
        misfit=None if draws is None else draws.misfit,
    )


def _clipped(at: float, bracket: _Bracket) -> float:
    low = bracket.here if bracket.diverges_below else bracket.low
    high = bracket.here if bracket.diverges_above else bracket.high
    return min(max(at, low), high)


def _interval(bracket: _Bracket, drawn: Floats | None) -> tuple[float | None, float | None]:
    """Return the 95% interval: that of the draws for an interior optimum; for others it holds the bracket too."""
    if bracket.kind == "interior":
        return (None, None) if drawn is None else (float(drawn[0]), float(drawn[1]))
    low, high = bracket.low, bracket.high
    if drawn is not None:
        low, high = min(low, float(drawn[0])), max(high, float(drawn[1]))
    low = bracket.below if bracket.diverges_below and bracket.below is not None else low
    high = bracket.above if bracket.diverges_above and bracket.above is not None else high
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


def _drift(
    fitted: Fitted, optima: Sequence[Optimum], brackets: dict[int, _Bracket], draws: Draws | None
) -> Drift | None:
    """Return the drift through all shapes with an estimate or a bound."""
    rows = fitted.grid.rows
    kinds = [optimum.kind for optimum in optima]
    known = [i for i, kind in enumerate(kinds) if kind == "interior" and (draws is None or i in brackets)]
    values = [value for i in known if (value := optima[i].log2_value) is not None]
    if draws is None:
        left_out = tuple(row.name for i, row in enumerate(rows) if i not in known)
        return fit_drift([rows[i].scale for i in known], values, left_out=left_out)
    observed = [
        Observed(
            name=row.name,
            doublings=math.log2(row.scale),
            value=optima[i].log2_value if i in known else None,
            se=float(draws.se_F[fitted.at[i]]),
            low=brackets[i].low,
            high=brackets[i].high,
        )
        for i, row in enumerate(rows)
        if i in brackets
    ]
    left_out = tuple(row.name for i, row in enumerate(rows) if i not in brackets)
    return fit_observed(observed, draws.normal_BF[:, [fitted.at[i] for i in known]], draws.freedom, left_out)
