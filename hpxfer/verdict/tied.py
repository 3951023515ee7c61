"""Ties: the choice among equal losses.

Errors are multiples of 1/n, so that several HP values may have exactly the lowest one. The first of them is no better
than the last: the middle one is chosen, which is the closest to the optimum of a basin with a flat bottom.
"""

from __future__ import annotations

from collections.abc import Sequence

ROUNDING = 1e-12  # means that differ by less are equal


def lowest_of(losses: Sequence[float], at: Sequence[float]) -> int:
    """Return the index of the lowest loss, +inf included. Of equal ones it is that in the middle of their places `at`.

    If two are equally far from the middle, the lower place counts.
    """
    least = min(losses)
    tied = [i for i, loss in enumerate(losses) if loss == least or loss - least <= ROUNDING]
    middle = (min(at[i] for i in tied) + max(at[i] for i in tied)) / 2
    return min(tied, key=lambda i: (round(abs(at[i] - middle), 9), at[i]))
