"""When a loss curve reaches a loss: the curve smoothed, made non-increasing, and read off between its points.

All is done over the logarithm of the position, which counts steps or tokens from the start. So a curve that goes
r times as fast through the same losses reaches each of them exactly r times as early.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from hpxfer.intervals import Floats

SMOOTH_SHARE = 0.1  # of the steps so far: a loss is the mean over as many, as batches differ more than steps do


def smoothed(at_N: Floats, loss_N: Floats) -> Floats:
    """Return the means over the last tenth of the steps so far: over the positions in (0.9 x, x] at each x.

    Positions ascend and are above 0. At the end it is the mean over the last tenth of the run.
    """
    start_N = np.searchsorted(at_N, (1 - SMOOTH_SHARE) * at_N, side="right")
    stop_N = np.arange(at_N.size) + 1
    sums = np.concatenate([[0.0], np.cumsum(loss_N)])
    return np.asarray((sums[stop_N] - sums[start_N]) / (stop_N - start_N))


def reaches(at_N: Floats, smooth_N: Floats, level: float) -> float | None:
    """Return the position from which a smoothed curve stays at or below `level`; None if it ends above it.

    The curve is first made non-increasing by least squares (isotonic regression). A batch that is easy by chance then
    does not count as reaching a loss, and a spike delays it. Between points the loss is linear in the log position.
    """
    fit = isotonic_regression(smooth_N, increasing=False)
    if fit.x[-1] > level:
        return None
    starts = np.asarray(fit.blocks[:-1])
    center_B = np.add.reduceat(np.log(at_N), starts) / np.diff(fit.blocks)
    loss_B = fit.x[starts]
    first = int(np.argmax(loss_B <= level))
    if first == 0:
        return float(at_N[0])
    above, below = loss_B[first - 1], loss_B[first]
    share = (above - level) / (above - below)
    return float(np.exp(center_B[first - 1] + share * (center_B[first] - center_B[first - 1])))
