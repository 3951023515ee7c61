"""The exponent of a power law of the scale, with an interval that neither seeds nor shapes make too narrow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from hpxfer.verdict.intervals import mean_interval
from hpxfer.verdict.thresholds import CONFIDENCE

TELLS = 2.0  # a wider interval holds all laws that a table claims, from -1 to 1


def wider_slope(
    values: Sequence[tuple[float, Mapping[int, float]]],
) -> tuple[float | None, float | None, float | None]:
    """Return the slope of log2 value over log2 scale, and its 95% interval. `values` holds scale -> seed -> value.

    Seeds that every scale has count. The interval is the wider of two by Student's t: that of the slopes of single
    seeds, and that of the line through the means of at least three scales. The first knows nothing of a curve that is
    no power law. The second knows nothing of luck that grows with the scale. None where a value is not above zero,
    where scales do not differ, where the interval is wider than TELLS, and for ends that nothing bounds.
    """
    seeds = sorted(set.intersection(*(set(of_seed) for _, of_seed in values))) if values else []
    value_SN = np.array([[of_seed[seed] for _, of_seed in values] for seed in seeds])
    x = np.log2([scale for scale, _ in values]) if values else np.zeros(0)
    if not value_SN.size or not (value_SN > 0).all() or np.ptp(x) == 0:
        return None, None, None
    dx = x - x.mean()
    y_SN = np.log2(value_SN)
    slope, low, high = mean_interval(y_SN @ dx / float(dx @ dx))
    half = 0.0 if low is None or high is None else (high - low) / 2
    if freedom := x.size - 2:
        mean_N = y_SN.mean(0)
        off_N = mean_N - mean_N.mean() - slope * dx
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
        half = max(half, t * math.sqrt(float(off_N @ off_N) / freedom / float(dx @ dx)))
    if 2 * half > TELLS:
        return None, None, None
    return (slope, slope - half, slope + half) if freedom or low is not None else (slope, None, None)
