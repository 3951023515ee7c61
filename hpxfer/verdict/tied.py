"""Ties: the choice among equal losses.

Several HP values may have exactly the lowest loss. The first of them is no better than the last: the middle one is
chosen, which is the closest to the optimum of a basin with a flat bottom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDING = 1e-12  # means that differ by less are equal


def lowest_of(losses: Sequence[float], at: Sequence[float]) -> int:
    """Return the index of the lowest loss, +inf included. Of equal ones it is that in the middle of their places `at`.

    If two are equally far from the middle, the lower place counts.
    """
    tied = equal_lowest(losses)
    middle = (min(at[i] for i in tied) + max(at[i] for i in tied)) / 2
    return min(tied, key=lambda i: (round(abs(at[i] - middle), 9), at[i]))


def equal_lowest(losses: Sequence[float]) -> list[int]:
    """Return the indices of the lowest losses, which are equal."""
    least = min(losses)
    return [i for i, loss in enumerate(losses) if loss == least or loss - least <= ROUNDING]


def most_central(places: Sequence[Sequence[float]]) -> int:
    """Return the index of the place over several HPs that is closest to the middle of all; of equal ones the first."""
    middle = [(min(side) + max(side)) / 2 for side in zip(*places, strict=True)]
    return min(range(len(places)), key=lambda i: round(math.dist(places[i], middle), 9))
