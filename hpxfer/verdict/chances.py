"""Chances: how probable it is that the HP transfers, that a regret exceeds its limit, and that the optimum moved.

All are shares of the joint draws of the basins. A regret is the loss of the transferred HP minus the lowest loss of the
shape. Which HP of the grid is the best at the base is itself uncertain: in each draw the base hands over the HP that is
best in that draw. A chance counts only as far as it holds both so and with the HP that is transferred, so that a tie at
the base decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.intervals import Floats, Ints
from hpxfer.verdict.basins import slack
from hpxfer.verdict.estimate import Estimates
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.posterior import posterior
from hpxfer.verdict.thresholds import MOVE_OCTAVES, NUM_SE, WITHOUT_ONE


@dataclass(frozen=True, kw_only=True, eq=False)
class Chances:
    """The chances of one grid. I counts its rows; NaN at a row without draws."""

    transfers: float  # every regret is within its limit, and no two optima differ by MOVE_OCTAVES
    moved: float  # of the two shapes for which it is the most probable: their optima differ by MOVE_OCTAVES
    between: tuple[int, int] | None  # these two rows; None if there are none
    over_I: Floats  # the regret exceeds its limit
    regret_BI: Floats  # draws of the regrets of the HP that is transferred


def chances(estimates: Estimates, base: int, cell: int, limits: Sequence[float | None]) -> Chances | None:
    """Return the chances if the base, a row of the grid, hands over one of its cells; None without draws there."""
    rows = [i for i in range(len(estimates.grid.rows)) if estimates.known(i) and limits[i] is not None]
    if base not in rows:
        return None
    measured = estimates.measured(base)
    cells_N = np.union1d(measured.cells_N, [cell])
    limit_I = np.array([np.nan if limit is None else limit for limit in limits])
    losses_BN = estimates.cell_losses(base)[:, cells_N]
    chosen = int(np.flatnonzero(cells_N == cell)[0])
    chosen_B = np.argmin(losses_BN, axis=1)
    draws = np.arange(len(losses_BN))
    regrets = [np.full((len(draws), len(limit_I)), np.nan) for _ in range(2)]
    for i in rows:
        at_BN = losses_BN if i == base else _losses_at(estimates, i, measured.x_K[cells_N])
        for regret_BI, loss_B in zip(regrets, (at_BN[:, chosen], at_BN[draws, chosen_B]), strict=True):
            regret_BI[:, i] = np.maximum(loss_B - estimates.lowest_BI[:, i], 0.0)
    apart_BII = np.abs(estimates.optimum_BI[:, rows, None] - estimates.optimum_BI[:, None, rows]) >= MOVE_OCTAVES
    # Where no basin is seen, the prior alone says where the optimum is. That shows no move.
    bending = [n for n, i in enumerate(rows) if estimates.optima[i].kind != "none"]
    surest = np.triu(apart_BII[:, bending][:, :, bending].mean(axis=0), 1)
    pair = np.unravel_index(int(surest.argmax()), surest.shape) if surest.any() else None
    stays_B = ~apart_BII.any(axis=(1, 2))
    over = [regret_BI > limit_I for regret_BI in regrets]
    known_I = np.isin(np.arange(len(limit_I)), rows)
    return Chances(
        transfers=float(min((stays_B & ~over_BI[:, rows].any(axis=1)).mean() for over_BI in over)),
        moved=float(surest.max(initial=0.0)),
        between=None if pair is None else (rows[bending[int(pair[0])]], rows[bending[int(pair[1])]]),
        over_I=np.where(known_I, np.minimum(*(over_BI.mean(axis=0) for over_BI in over)), np.nan),
        regret_BI=regrets[0],
    )


def _losses_at(estimates: Estimates, i: int, x_N: Floats) -> Floats:
    """Return draws of the losses of a row at log2 HPs, (B, N): of its measured cells, elsewhere of the drawn basins."""
    measured = estimates.measured(i)
    out = estimates.posterior.curves(int(estimates.index_I[i]), x_N)
    found: list[tuple[int, int]] = [
        (n, int(np.argmin(np.abs(measured.x_K - x))))
        for n, x in enumerate(x_N)
        if np.abs(measured.x_K - x).min(initial=np.inf) < 1e-12
    ]
    if found:
        cells: Ints = np.array([k for _, k in found])
        out[:, [n for n, _ in found]] = estimates.cell_losses(i)[:, cells]
    return out


MOST = 4  # runs that are left out in earnest
FEW = 0.05  # of the draws: if the weights rest on fewer, they tell nothing

Run = tuple[int, int, int]  # row of the grid, cell, seed


def weakest(
    estimates: Estimates, base: int, cells: Sequence[int | None], limits: Sequence[float | None], *, drifts: bool
) -> tuple[Run, Chances | None] | None:
    """Return the run without which a verdict is not likely, and the chances without it; None if there is none.

    `cells` are those of the transferred HP. The chances are None where no noise is known.
    """
    cell = cells[base]
    diverging = [
        (i, k) for i, k in enumerate(cells) if k is not None and i != base and estimates.measured(i).diverges_K[k]
    ]
    if drifts and (len(diverging) > 1 or any(_surely_diverges(estimates.measured(i), k) for i, k in diverging)):
        return None
    suspects = [(i, k, int(np.flatnonzero(np.isinf(estimates.measured(i).loss_KS[k]))[0])) for i, k in diverging]
    if cell is None or estimates.noise is None:
        return (suspects[0], None) if suspects else None
    for run in (suspects or _suspects(estimates, base, cell, limits, drifts=drifts))[:MOST]:
        found = chances(_without(estimates, run), base, cell, limits)
        if found is None or _chance(found, drifts=drifts) < WITHOUT_ONE:
            return run, found
    return None


def _surely_diverges(measured: Measured, k: int) -> bool:
    """Return whether a cell diverges whichever run is left out. The only run of a cell needs the next larger HP's."""
    diverged, finite = np.isinf(measured.loss_KS).sum(axis=1), measured.num_K
    if diverged[k] > 1:
        return bool(diverged[k] - 1 >= finite[k])
    beyond = np.flatnonzero(measured.has_result_K[k + 1 :])
    return bool(finite[k] == 0 and beyond.size and measured.diverges_K[k + 1 + beyond[0]])


def _chance(found: Chances, *, drifts: bool) -> float:
    if not drifts:
        return found.transfers
    return max(found.moved, float(np.nanmax(found.over_I, initial=0.0)))


def _suspects(estimates: Estimates, base: int, cell: int, limits: Sequence[float | None], *, drifts: bool) -> list[Run]:
    """Return the runs that the statement may rest on, the most suspect first."""
    found = chances(estimates, base, cell, limits)
    assert found is not None
    rows = [i for i in range(len(limits)) if estimates.known(i)]
    limit_I = np.array([np.inf if limit is None else limit for limit in limits])
    holds_B = np.ptp(estimates.optimum_BI[:, rows], axis=1) < MOVE_OCTAVES
    holds_B &= ~(found.regret_BI[:, rows] > limit_I[rows]).any(axis=1)
    holds_B = holds_B != drifts
    out = []
    for run, log_B in _log_weights(estimates, rows):
        weight_B = np.exp(log_B - log_B.max())
        share = float(weight_B @ holds_B / weight_B.sum())
        rests_on = float(weight_B.sum() ** 2 / (weight_B @ weight_B)) / weight_B.size
        if share < WITHOUT_ONE or rests_on < FEW:
            out.append((share, run))
    return [run for _, run in sorted(out)]


def _log_weights(estimates: Estimates, rows: list[int]) -> Iterator[tuple[Run, Floats]]:
    """Yield the runs of fitted cells that matter, and how much likelier its absence makes each draw, as log weights.

    A run matters if it is the only one of its cell, or moves the mean by more than NUM_SE standard errors.
    """
    for i in rows:
        measured = estimates.measured(i)
        drawn_BK = estimates.posterior.curves(int(estimates.index_I[i]), measured.x_K)
        spread_BK = (estimates.posterior.tolerance_B[:, None] * slack(measured)) ** 2
        variance_K = estimates.noise_at(i).of_means(measured)
        with_all_BK = _log_likelihood(measured.mean_K - drawn_BK, variance_K + spread_BK)
        for k in measured.cells_N:
            for s in np.flatnonzero(np.isfinite(measured.loss_KS[k])):
                if measured.num_K[k] == 1:
                    yield (i, int(k), int(s)), -with_all_BK[:, k]
                    continue
                left = _left_out(measured, int(k), int(s))
                if abs(left.mean_K[k] - measured.mean_K[k]) <= NUM_SE * math.sqrt(variance_K[k]):
                    continue
                variance = estimates.noise_at(i).of_means(left)[k]
                without_B = _log_likelihood(left.mean_K[k] - drawn_BK[:, k], variance + spread_BK[:, k])
                yield (i, int(k), int(s)), without_B - with_all_BK[:, k]


def _log_likelihood(away: Floats, variance: Floats) -> Floats:
    return np.asarray(-0.5 * away**2 / variance - 0.5 * np.log(variance))


def _left_out(measured: Measured, k: int, s: int) -> Measured:
    """Return a shape without one run. A cell whose seeds disagree stays in doubt: the one that is left may be wrong."""
    loss_KS = measured.loss_KS.copy()
    loss_KS[k, s] = np.nan
    return replace(measured, loss_KS=loss_KS)


def _without(estimates: Estimates, run: Run) -> Estimates:
    i, k, s = run
    at = int(estimates.index_I[i])
    rows = list(estimates.posterior.rows)
    rows[at] = _left_out(rows[at], k, s)
    return estimates.anew(posterior(rows, estimates.posterior.noise, estimates.posterior.arms))
