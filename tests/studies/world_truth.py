"""The truth about a sweep of a world, from its noise-free losses: what a verdict and its intervals are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from foreign_worlds import WorldSweep
from world_basins import Floats

LIMIT = 0.01  # the regret that counts as none, as a share of a shape's best noise-free loss
OCTAVES = 1.0  # the difference of two true optima at which the HP counts as drifting
CLEAR_STAYS, CLEAR_DRIFTS = (0.75, 0.5), (1.25, 2.0)  # octaves, regret as a multiple of its limit
REACH = 6.0  # the optima are sought so many octaves beyond the grid
COARSE, FINE = 1 / 64, 1 / 4096  # octaves
TIE = 2 * FINE  # two optima are known to so many octaves; a difference this close to a limit counts as on it
LINE = 0.01  # optima this close to their line lie on it
NEAR_OCTAVES, NEAR_CELLS = 2.0, 3  # an optimum can be seen with so many finite cells so close


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The truth of one sweep that does not depend on the HP it transfers. The optima are log2 HPs."""

    optimum_I: Floats
    best_I: Floats  # noise-free loss there
    visible_I: tuple[bool, ...]  # whether the optimum lies inside the grid with enough finite cells around it
    drift: float  # least-squares slope, octaves per doubling
    ends: float  # the move from the smallest to the largest shape
    widest: tuple[float, ...]  # the largest moves between two shapes, from the smaller to the larger; several if equal
    is_line: bool

    def of(self, shapes: Sequence[int]) -> Truth:
        """Return the truth of an answer whose drift and move are those of some shapes; of all, with fewer than two."""
        at = np.array(shapes)
        return self if at.size < 2 else replace(self, **_moves(self.optimum_I[at], at.astype(float)))

    @property
    def spread(self) -> float:
        """The largest difference of two optima."""
        return float(np.ptp(self.optimum_I))


@dataclass(frozen=True, kw_only=True)
class TrueVerdict:
    """What the verdict on one transferred HP should be."""

    transfers: bool
    clear: bool  # far enough from the limit that a verdict can be asked for
    worst: float  # the largest regret as a multiple of its limit
    most_lost: float  # nats: the largest regret beyond the base


def lowest_points(curves: Callable[[Floats], Floats], low: float, high: float) -> tuple[Floats, Floats]:
    """Return log2 HP and loss of the lowest point of each curve between two log2 HPs, to a 4,096th of an octave."""
    x_N = np.arange(low, high + COARSE, COARSE)
    near_I = x_N[np.argmin(curves(x_N), axis=1)]
    out = np.empty((2, len(near_I)))
    for i, near in enumerate(near_I):
        fine_N = near + np.arange(-2 * COARSE, 2 * COARSE + FINE, FINE)
        loss_N = curves(fine_N)[i]
        best = int(np.argmin(loss_N))
        out[:, i] = fine_N[best], loss_N[best]
    return out[0], out[1]


def truth_of(sweep: WorldSweep) -> Truth:
    """Return the truth of a sweep."""
    x_K = sweep.x_K
    optimum_I, best_I = lowest_points(sweep.curves, x_K[0] - REACH, x_K[-1] + REACH)
    finite_IK = np.isfinite(sweep.loss_IKS).any(axis=2) & ~np.isinf(sweep.loss_IKS).any(axis=2)
    near_IK = finite_IK & (np.abs(x_K - optimum_I[:, None]) <= NEAR_OCTAVES)
    inside_I = (x_K[0] <= optimum_I) & (optimum_I <= x_K[-1])
    return Truth(
        optimum_I=optimum_I,
        best_I=best_I,
        visible_I=tuple((inside_I & (near_IK.sum(axis=1) >= NEAR_CELLS)).tolist()),
        **_moves(optimum_I, np.arange(float(len(optimum_I)))),
    )


def _moves(optimum_I: Floats, doublings_I: Floats) -> dict[str, Any]:
    """Return the drift of optima, their moves, and whether they lie on a line."""
    slope, start = np.polyfit(doublings_I, optimum_I, 1)
    later, earlier = np.tril_indices(len(optimum_I), -1)
    moves = optimum_I[later] - optimum_I[earlier]
    largest = moves[np.abs(moves) >= np.abs(moves).max() - LINE]
    return {
        "drift": float(slope),
        "ends": float(optimum_I[-1] - optimum_I[0]),
        "widest": tuple(largest.tolist()),
        "is_line": bool(np.abs(optimum_I - start - slope * doublings_I).max() <= LINE),
    }


def regrets(sweep: WorldSweep, truth: Truth, value: float) -> Floats:
    """Return what an HP costs over the best noise-free loss of each shape, in nats; +inf where it diverges."""
    return np.asarray(sweep.curves(np.array([math.log2(value)]))[:, 0] - truth.best_I)


def true_verdict(sweep: WorldSweep, truth: Truth, value: float | None) -> TrueVerdict:
    """Return what the verdict should be if this HP is transferred. Without an HP it is the base's best on the grid."""
    if value is None:
        value = 2.0 ** sweep.x_K[int(np.argmin(sweep.curves(sweep.x_K)[0]))]
    lost_I = regrets(sweep, truth, value)
    worst = float(np.max(lost_I / (LIMIT * truth.best_I)))
    octaves = truth.spread
    return TrueVerdict(
        transfers=worst <= 1 and octaves < OCTAVES - TIE,
        clear=(octaves <= CLEAR_STAYS[0] + TIE and worst <= CLEAR_STAYS[1])
        or octaves >= CLEAR_DRIFTS[0] - TIE
        or worst >= CLEAR_DRIFTS[1],
        worst=worst,
        most_lost=float(np.max(lost_I[1:])),
    )
