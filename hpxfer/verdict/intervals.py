"""Intervals from a few independent numbers."""

from __future__ import annotations

import math

from scipy import stats

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.thresholds import CONFIDENCE


def mean_interval(values: Floats) -> tuple[float, float | None, float | None]:
    """Return the mean of values and the ends of its 95% interval by Student's t; None for the ends of a single one."""
    mean = float(values.mean())
    if values.size < 2:
        return mean, None, None
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1))
    half = t * float(values.std(ddof=1)) / math.sqrt(values.size)
    return mean, mean - half, mean + half
