"""Chances: how probable it is that the HP transfers, that a regret exceeds its limit, and that the optimum moved.

All are shares of the joint draws of the basins. A regret is the loss of the transferred HP minus the lowest loss of the
shape. Which HP of the grid is the best at the base is itself uncertain: in each draw the base hands over the HP that is
best in that draw. A chance counts only as far as it holds both so and with the HP that is transferred, so that a tie at
the base decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.verdict.basins import Ints
from hpxfer.verdict.estimate import Estimates
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.thresholds import MOVE_OCTAVES


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
