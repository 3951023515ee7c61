"""Estimates: the optima of one parameterization along one axis with their intervals, and the drift through them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.bootstrap import Draws, SeedNoise, draw_optima
from hpxfer.analysis.cube import Cube, Floats, cube
from hpxfer.analysis.drift import Drift, Observed, fit_drift, fit_observed
from hpxfer.analysis.local_fit import LocalFit, fit_local, lowest
from hpxfer.analysis.optimum import Kind, Optimum, basin_optimum, open_because

FLAT = "the loss does not bend by more than seeds differ: a wider grid or more seeds are needed"
AKIMA_STEPS = 512  # points at which a spline is looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """The basins of one parameterization along one axis, and their fit: the step before the seeds' noise is pooled."""

    group: tuple[Basin, ...]
    cube: Cube
    fit: LocalFit | None

    @cached_property
    def shared(self) -> tuple[float | None, ...]:
        """The optima, in octaves, if all fitted shapes had one curvature."""
        return _shared(self)

    @cached_property
    def at(self) -> dict[int, int]:
        """The index in the fit of each fitted shape."""
        return {} if self.fit is None else {int(i): f for f, i in enumerate(self.fit.rows_F)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """Optima in the order of the basins, and their drift."""

    optima: tuple[Optimum, ...]
    drift: Drift | None


@dataclass(frozen=True, kw_only=True)
class _Bracket:
    """Where the optimum of a fitted shape lies on the grid, in octaves. Neighbors are measured; None is none."""

    kind: Kind
    here: float  # the cell closest to the fitted optimum
    below: float | None
    above: float | None
    diverges_below: bool
    diverges_above: bool

    @property
    def low(self) -> float:
        """How low the optimum may be: halfway to a neighbor that is worse, as far as one that diverges."""
        if self.below is None:
            return -math.inf
        return self.below if self.diverges_below else (self.below + self.here) / 2

    @property
    def high(self) -> float:
        if self.above is None:
            return math.inf
        return self.above if self.diverges_above else (self.above + self.here) / 2


def fitted(group: Sequence[Basin]) -> Fitted:
    """Return the fit of the basins of one parameterization along one axis."""
    data = cube(group)
    return Fitted(group=tuple(group), cube=data, fit=fit_local(data))


def estimate(one: Fitted, noise: SeedNoise | None) -> Estimates:
    """Return the optima and the drift; without noise (one seed) there are no intervals, but of bounds."""
    draws = None if one.fit is None or noise is None else draw_optima(one.cube, one.fit, noise)
    told = {i: f for i, f in one.at.items() if draws is None or not draws.flat_F[f]}
    brackets = {i: _bracket(one, i, f) for i, f in told.items()}
    optima = tuple(_optimum(one, i, brackets.get(i), draws) for i in range(len(one.group)))
    return Estimates(optima=optima, drift=_drift(one, optima, brackets, draws))


def _bracket(one: Fitted, i: int, f: int) -> _Bracket:
    assert one.fit is not None
    x, data = one.cube.x_K, one.cube
    cells = np.flatnonzero(data.basin_IK[i])
    here = int(cells[np.argmin(np.abs(x[cells] - one.fit.optima()[f]))])
    lost_K = data.diverges_IK[i] | data.cliffs_IK[i]
    measured = np.flatnonzero(data.num_seeds_IK[i])
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


def _optimum(one: Fitted, i: int, bracket: _Bracket | None, draws: Draws | None) -> Optimum:
    """Return the optimum of a shape; where fewer than three cells are stable, what the medians say, without error."""
    basin = one.group[i]
    plain = basin_optimum(basin)
    if i in one.at and bracket is None:
        return replace(plain, kind="none", log2_value=None, open_because=FLAT)
    if bracket is None or one.fit is None:
        return plain
    f, fit = one.at[i], one.fit
    of = np.flatnonzero(fit.shape_N == f)
    x = one.cube.x_K[fit.cell_N[of]]
    best = float(x[np.argmin(fit.loss(f, x))])
    at = float(fit.optima()[f])
    _, c, d = (float(part[f]) for part in fit.parts(fit.coefficients_P))
    low, high = _interval(bracket, None if draws is None else draws.interval_2F[:, f])
    measured = one.cube.x_K[np.flatnonzero(one.cube.num_seeds_IK[i])]
    low = None if low is None or low < measured[0] else low  # an interval that leaves the grid is open there
    high = None if high is None or high > measured[-1] else high
    planned = list(np.log2([point.value for point in basin.points]))  # as the cube has them, to the last bit
    estimated = bracket.kind in ("interior", "at_divergence")
    return replace(
        plain,
        kind=bracket.kind,
        log2_value=_clipped(at, bracket) if estimated else bracket.here,
        grid_value=basin.points[planned.index(best)].value,
        open_because=open_because(bracket.kind, basin, planned.index(bracket.here)),
        low_log2=low,
        high_log2=high,
        se_log2=float(draws.se_F[f]) if draws is not None and bracket.kind == "interior" else None,
        curvature=c + 3 * d * (at - float(fit.center_F[f])),
        misfit=None if draws is None else draws.misfit,
        akima_log2=_akima(x, one.cube.mean_IK[i, fit.cell_N[of]]),
        shared_log2=one.shared[f],
    )


def _clipped(at: float, bracket: _Bracket) -> float:
    low = bracket.here if bracket.diverges_below else bracket.low
    high = bracket.here if bracket.diverges_above else bracket.high
    return min(max(at, low), high)


def _interval(bracket: _Bracket, drawn: Floats | None) -> tuple[float | None, float | None]:
    """Return the 95% interval: what was drawn if the optimum is interior, no shorter than the bracket if it is not."""
    if bracket.kind == "interior":
        return (None, None) if drawn is None else (float(drawn[0]), float(drawn[1]))
    low, high = bracket.low, bracket.high
    if drawn is not None:
        low, high = min(low, float(drawn[0])), max(high, float(drawn[1]))
    low = bracket.below if bracket.diverges_below and bracket.below is not None else low
    high = bracket.above if bracket.diverges_above and bracket.above is not None else high
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


def _drift(one: Fitted, optima: Sequence[Optimum], brackets: dict[int, _Bracket], draws: Draws | None) -> Drift | None:
    """Return the drift through all shapes of which an estimate or a bound is known."""
    kinds = [optimum.kind for optimum in optima]
    known = [i for i, kind in enumerate(kinds) if kind == "interior" and (draws is None or i in brackets)]
    values = [value for i in known if (value := optima[i].log2_value) is not None]
    if draws is None:
        out = tuple(basin.name for i, basin in enumerate(one.group) if i not in known)
        return fit_drift([one.group[i].scale for i in known], values, left_out=out)
    observed = [
        Observed(
            name=basin.name,
            doublings=math.log2(basin.scale),
            value=optima[i].log2_value if i in known else None,
            se=float(draws.se_F[one.at[i]]),
            low=brackets[i].low,
            high=brackets[i].high,
        )
        for i, basin in enumerate(one.group)
        if i in brackets
    ]
    out = tuple(basin.name for i, basin in enumerate(one.group) if i not in brackets)
    return fit_observed(observed, draws.normal_BF[:, [one.at[i] for i in known]], draws.freedom, out)


def _akima(x: Floats, y: Floats) -> float:
    """Return where the Akima spline through the means of the cells is lowest, in octaves."""
    fine = np.linspace(x[0], x[-1], AKIMA_STEPS)
    return float(fine[np.argmin(Akima1DInterpolator(x, y)(fine))])


def _shared(one: Fitted) -> tuple[float | None, ...]:
    """Return the optima, in octaves, if all shapes had one curvature as they have one cubic part; None without one."""
    fit = one.fit
    assert fit is not None
    num = fit.rows_F.size
    design = np.concatenate(
        [
            fit.design_NP[:, [3 * f + power for f in range(num) for power in (0, 1)]],
            fit.design_NP[:, 2 : 3 * num : 3].sum(axis=1, keepdims=True),
            fit.design_NP[:, 3 * num :],
        ],
        axis=1,
    )
    root, mean = np.sqrt(fit.weight_N), fit.left_N + fit.design_NP @ fit.coefficients_P
    found = np.linalg.lstsq(design * root[:, None], mean * root, rcond=None)[0]
    b, c = found[1 : 2 * num : 2], np.full(num, found[2 * num])
    if c[0] <= 0:
        return (None,) * num
    d = np.full(num, found[2 * num + 1] if len(found) > 2 * num + 1 else 0.0)
    at = fit.center_F + lowest(b, c, d, *(fit.ends_2F - fit.center_F))
    return tuple(float(value) for value in at)
