"""Types of arrays, intervals of draws and samples, and which of equal losses counts as the lowest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# The confidence of every interval that a report prints or a figure draws, e.g. that of an optimum, a drift or a fit.
CONFIDENCE = 0.95

ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)  # the quantiles at the ends of such an interval
NORMAL_SE = (float(stats.norm.cdf(-1)), float(stats.norm.cdf(1)))
RANDOM_SEED = 20260121  # of every draw: fixed, so that equal losses give equal answers
ROUNDING = 1e-12  # mean losses that differ by less are equal


def interval(low_B: Floats, high_B: Floats) -> tuple[float | None, float | None]:
    """Return the ends of the 95% interval of draws that lie between `low_B` and `high_B`; None on an open side."""
    low = float(np.quantile(low_B, ENDS[0], method="lower"))
    high = float(np.quantile(high_B, ENDS[1], method="higher"))
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


def half_width(draws_B: Floats) -> float:
    """Return the standard error of what is drawn, from the middle 68% of the draws."""
    low, high = (float(np.quantile(draws_B, share)) for share in NORMAL_SE)
    return (high - low) / 2


def mean_interval(values: Floats) -> tuple[float, float | None, float | None]:
    """Return the mean of values and the ends of its 95% interval by Student's t; None for the ends of a single one."""
    mean = float(values.mean())
    if values.size < 2:
        return mean, None, None
    half = float(stats.t.ppf(ENDS[1], values.size - 1)) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return mean, mean - half, mean + half


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
