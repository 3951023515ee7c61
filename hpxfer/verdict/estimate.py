"""Estimates: the optima of one parameterization along one axis, with their intervals, and how they move with scale.

All axes of all arms that share a base are estimated together, so that the base has one optimum on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import stats

from hpxfer.intervals import ENDS, ROUNDING, Floats, Ints, half_width, lowest_of
from hpxfer.verdict.basins import rise_of_each
from hpxfer.verdict.drift import DrawnOptima, Drift, Move, draw_drift, draw_move, fit_drift
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.noise import SeedNoise, ignored_seeds, seed_noise
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.optimum import Optimum, kind_at, measured_optimum, open_because, range_of
from hpxfer.verdict.posterior import Posterior, posterior
from hpxfer.verdict.shared_base import Group, groups_of, key_of
from hpxfer.verdict.thresholds import FLAT_CHANCE, NUM_SE

FLAT = "the loss does not bend by more than seeds differ: a wider grid or more seeds are needed"
# With one seed, the noise is taken to be this share of the measured rises. It places the optimum, and no more.
NOMINAL_NOISE = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """What is known of one grid: draws of its basins, the optimum of each row, and how it changes with scale."""

    grid: LossGrid
    sharing: tuple[LossGrid, ...]  # all grids with this base, this one included
    posterior: Posterior  # of all shapes of these arms, along all axes
    index_I: Ints  # the place of each row of the grid in the posterior
    base: Posterior | None  # of the base's own losses alone; None without a base
    has_noise: bool  # whether a shape has two seeds; without, there are points and no intervals
    optima: tuple[Optimum, ...]  # in the order of the rows
    drift: Drift | None
    move: Move | None
    ignored_seeds: str | None = None  # where seeds change nothing, on any grid that shares the noise

    @property
    def noise(self) -> SeedNoise | None:
        """The noise of seeds; None with one seed."""
        return self.posterior.noise if self.has_noise else None

    @cached_property
    def optimum_BI(self) -> Floats:
        """Draws of the optima, log2 HP; NaN at a shape about which nothing is known."""
        return self.posterior.optimum_BI[:, self.index_I]

    def measured(self, i: int) -> Measured:
        """Return what was measured at a row of the grid."""
        found: Measured = self.posterior.rows[int(self.index_I[i])]
        return found

    def anew(self, found: Posterior) -> Estimates:
        """Return the estimates of the same grid from another posterior of its arms. The base keeps its HP."""
        return _estimate(replace(self, posterior=found))

    def noise_at(self, i: int) -> SeedNoise:
        """Return the noise of a row of the grid, a nominal one with one seed."""
        return self.posterior.noise_at(int(self.index_I[i]))

    def known(self, i: int) -> bool:
        """Return whether a row of the grid has draws."""
        return self.posterior.known(int(self.index_I[i]))

    def cell_losses(self, i: int) -> Floats:
        """Return draws of the mean losses of the cells of a row, (B, K)."""
        return self.posterior.cell_losses(int(self.index_I[i]))

    def curve(self, i: int, x: Floats) -> Floats:
        """Return the mean of the drawn basins of a row at log2 HPs."""
        return self.posterior.mean_curve(int(self.index_I[i]), x)

    def drawn(self, shapes: Sequence[int]) -> DrawnOptima:
        """Return draws of the optima of some rows, with the range that was measured at each."""
        ranges = [range_of(self.grid.rows[i]) for i in shapes]
        return DrawnOptima(
            optimum_BI=self.optimum_BI[:, list(shapes)],
            first_I=np.array([first for first, _ in ranges]),
            last_I=np.array([last for _, last in ranges]),
        )

    @cached_property
    def lowest_BI(self) -> Floats:
        """Draws of the lowest loss of each row: that of the basin, or of a measured cell that lies lower."""
        out = np.full_like(self.optimum_BI, np.nan)
        for i in range(len(self.grid.rows)):
            if self.known(i):
                cells_BN = self.cell_losses(i)[:, self.measured(i).cells_N]
                out[:, i] = np.minimum(self.posterior.level_BI[:, self.index_I[i]], cells_BN.min(axis=1))
        return out


def estimate_all(grids: Sequence[LossGrid], *, extra_sd: float = 0.0) -> tuple[Estimates, ...]:
    """Return the estimates of every grid. The noise of seeds is pooled over all of them.

    `extra_sd` is the standard deviation of a loss beyond that of seeds, in the loss's unit. It is added to the noise.
    """
    groups = groups_of(grids)
    distinct = {key: row for group in groups for key, row in group.rows.items()}
    noise, rows = seed_noise(measure(distinct.values()), _places(groups, list(distinct)))
    measured = dict(zip(distinct, rows, strict=True))
    if noise is not None and extra_sd:
        noise = replace(noise, variance=noise.variance + extra_sd**2)
    ignored = ignored_seeds(distinct.values())
    found = {}
    for group in groups:
        for estimates in _estimates(group, [measured[key] for key in group.rows], noise):
            found[estimates.grid.key] = replace(estimates, ignored_seeds=ignored)
    return tuple(found[grid.key] for grid in grids)


def _estimates(group: Group, rows: Sequence[Measured], noise: SeedNoise | None) -> Iterator[Estimates]:
    """Yield the estimates of the grids of a group from what was measured at its shapes."""
    found, places = posterior(rows, noise or _nominal(rows), group.arms), list(group.rows)
    alone = {key: _alone(rows[i], noise) for i, key in enumerate(places) if i < group.num_bases}
    for grid in group.grids:
        keys = [key_of(row) for row in grid.rows]
        base = next((key for key in keys if key in alone), None)
        yield _estimate(
            Estimates(
                grid=grid,
                sharing=tuple(other for other in group.grids if base in map(key_of, other.rows)),
                posterior=found,
                index_I=np.array([places.index(key) for key in keys]),
                base=None if base is None else alone[base],
                has_noise=noise is not None,
                optima=(),
                drift=None,
                move=None,
            )
        )


def _alone(row: Measured, pooled: SeedNoise | None) -> Posterior:
    """Return the posterior of a base by its own losses and their own noise: no other shape has a say in it."""
    own, _ = seed_noise([row], {})
    return posterior([replace(row, noise_ratio=1.0)], own or pooled or _nominal([row]))


def _places(groups: Sequence[Group], keys: Sequence[Hashable]) -> dict[str, dict[int, float]]:
    """Return where shapes, by their place in `keys`, lie along each axis by log2 scale: from -0.5 to 0.5."""
    out: dict[str, dict[int, float]] = {}
    at = {key: i for i, key in enumerate(keys)}
    grids = [grid for group in groups for grid in group.grids]
    for axis in dict.fromkeys(grid.axis for grid in grids):
        rows = [row for grid in grids if grid.axis == axis for row in grid.rows]
        log = np.log2([row.scale for row in rows])
        spread = float(np.ptp(log)) or 1.0
        out[axis] = {at[key_of(row)]: float(x - log.min()) / spread - 0.5 for row, x in zip(rows, log, strict=True)}
    return out


def _nominal(rows: Sequence[Measured]) -> SeedNoise:
    """Return the noise that stands in for an unknown one."""
    rises = [float(np.ptp(row.mean_K[row.cells_N])) for row in rows if row.cells_N.size]
    sd = NOMINAL_NOISE * float(np.median(rises)) if rises else 1.0
    return SeedNoise(variance=max(sd, 1e-6) ** 2, slope_variance=0.0, freedom=5.0, trial_freedom=5.0)


def _estimate(blank: Estimates) -> Estimates:
    optima = tuple(_optimum(blank, i) for i in range(len(blank.grid.rows)))
    drift, move = _drift(blank, optima)
    return replace(blank, optima=optima, drift=drift, move=move)


def best_cell(estimates: Estimates, i: int) -> int | None:
    """Return the cell of a row with the lowest loss, as far as measured losses and basin tell; None without one.

    No measured mean is lower by more than two standard errors: what was measured wins over what was fitted. At the base
    its own losses alone choose the cell, so that no other shape changes what the base hands on.
    """
    measured = estimates.measured(i)
    lowest, cells_N = measured.lowest, measured.cells_N
    if lowest is None or not estimates.known(i):
        return lowest
    alone = estimates.base if estimates.grid.rows[i].is_base else None
    losses_BK = estimates.cell_losses(i) if alone is None else alone.cell_losses(0)
    expected_N = losses_BK[:, cells_N].mean(axis=0)
    noise = estimates.noise_at(i) if alone is None else alone.noise_at(0)
    for n, cell in enumerate(cells_N):
        error = noise.cells_se(measured, int(cell), lowest)
        if measured.mean_K[cell] - measured.mean_K[lowest] > NUM_SE * error:
            expected_N[n] = math.inf
    return int(cells_N[lowest_of(expected_N.tolist(), measured.x_K[cells_N].tolist())])


def _optimum(estimates: Estimates, i: int) -> Optimum:
    """Return the optimum of a row. A shape with fewer than three stable cells has that of its means, and no error."""
    measured = estimates.measured(i)
    plain = measured_optimum(measured)
    best = best_cell(estimates, i)
    if best is None or plain.kind == "none" or not estimates.known(i) or measured.lowest is None:
        return plain
    drawn = estimates.optimum_BI[:, i]
    first, last = range_of(measured.row)
    low, high = (float(end) for end in np.quantile(drawn, ENDS))
    if estimates.has_noise and ((low < first and high > last) or not bends(estimates, i)):
        chosen = measured.row.cells[best].value
        return replace(plain, kind="none", log2_value=None, grid_value=chosen, open_because=FLAT)
    low, high = min(low, last), max(high, first)  # beyond the measured HPs nothing is claimed but the side
    # The lowest measured cells decide whether the loss rises to both sides, so that no rise is only a fitted one.
    lowest = np.flatnonzero(measured.stable_K & (measured.mean_K <= measured.mean_K[measured.lowest] + ROUNDING))
    shown = next((int(k) for k in lowest if kind_at(measured, int(k)) in ("lower_edge", "upper_edge")), best)
    kind = kind_at(measured, shown)
    inside = kind in ("interior", "at_divergence")
    misfit = float(estimates.posterior.misfit_I[estimates.index_I[i]])
    return replace(
        plain,
        kind=kind,
        log2_value=float(np.median(drawn)) if inside else float(measured.x_K[shown]),
        grid_value=measured.row.cells[shown].value,
        open_because=open_because(kind, measured, shown),
        low_log2=low if estimates.has_noise and low >= first else None,
        high_log2=high if estimates.has_noise and high <= last else None,
        se_log2=half_width(drawn) if estimates.has_noise and kind == "interior" else None,
        curvature=float(np.median(estimates.posterior.curvature_BI[:, estimates.index_I[i]])),
        misfit=misfit if estimates.has_noise and misfit > 1 else None,
    )


def bends(estimates: Estimates, i: int) -> bool:
    """Return whether the mean losses of a row differ by more than seeds explain, or bend by more (F tests).

    The slopes of seeds tilt a row and do not bend it. So the noise of trials alone is what a bend is compared with.
    Each test has half of the chance to be wrong.
    """
    measured, noise = estimates.measured(i), estimates.noise_at(i)
    at = measured.cells_N
    y, root = measured.mean_K[at], 1 / np.sqrt(noise.of_means(measured)[at])
    if y.size < 2:
        return False
    if measured.diverges_beside:
        return True  # which no noise explains
    line = np.column_stack([root, root * measured.x_K[at]])
    for free, design, freedom in ((y.size - 1, line[:, :1], noise.freedom), (y.size - 2, line, noise.trial_freedom)):
        rest = y * root - design @ np.linalg.lstsq(design, y * root, rcond=None)[0]
        if free > 0 and stats.f.sf(float(rest @ rest) / free, free, freedom) < FLAT_CHANCE / 2:
            return True
    return False


def octave_cost(estimates: Estimates, i: int, octaves: float = 1.0) -> float | None:
    """Return what so many octaves from the optimum cost: the median over draws of the mean of both sides."""
    if not estimates.known(i):
        return None
    at, found = int(estimates.index_I[i]), estimates.posterior
    below_B, above_B = (_rise(found, at, away) for away in (-octaves, octaves))
    return float(np.median((below_B + above_B) / 2))


def _rise(found: Posterior, at: int, octaves: float) -> Floats:
    away = np.full(len(found.optimum_BI), octaves)
    return np.asarray(found.curvature_BI[:, at] * rise_of_each(away, found.form_BI[:, at]))


def _drift(estimates: Estimates, optima: Sequence[Optimum]) -> tuple[Drift | None, Move | None]:
    """Return drift and move over all shapes with draws; without noise, the drift over those with an estimate."""
    rows = estimates.grid.rows
    inside = [i for i, optimum in enumerate(optima) if optimum.kind == "interior"]
    if not estimates.has_noise:
        values = [value for i in inside if (value := optima[i].log2_value) is not None]
        left_out = tuple(row.name for i, row in enumerate(rows) if i not in inside)
        return fit_drift([rows[i].scale for i in inside], values, left_out=left_out), None
    known = [i for i in range(len(rows)) if estimates.known(i) and optima[i].kind != "none"]
    known.sort(key=lambda i: rows[i].scale)
    drawn = estimates.drawn(known)
    scales = [rows[i].scale for i in known]
    drift = draw_drift(
        scales,
        drawn,
        bounds=tuple(rows[i].name for i in known if i not in inside),
        left_out=tuple(row.name for i, row in enumerate(rows) if i not in known),
    )
    return drift, None if drift is None else draw_move(drift, drawn, scales)
