"""The truth of the bias-rate simulation: which part of the active experts changes where there are infinitely many.

The K largest of infinitely many experts are those above a quantile. So the part is an integral over the distributions
of logit, bias and update, and Gauss-Legendre quadrature has it to about 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr

from hpxfer.limit.given import Floats

_TAIL = 9.0  # std at which a normal ends: beyond are 1e-19 of it
_BEYOND = 1e-6  # room around the thresholds
_TOLERANCE = 1e-13  # of a threshold
# Of Gauss-Legendre on (0, 1), in every panel.
_NODES, _WEIGHTS = (0.5 * each for each in np.polynomial.legendre.leggauss(48))
_NODES = _NODES + 0.5


def changed_limit(active_share: float, *, logit_scale: float, bias_scale: float, update_scale: float) -> float:
    """Return the changed part of the active experts with infinitely many of them.

    Let S(x) be the part of experts with q above x, and x_A, x_B the thresholds before and after. An expert with the
    update u stays active if q > x_A and q + u > x_B. So 1 - changed is the mean over u of S(max(x_A, x_B - u)) / share.
    """
    if not update_scale or active_share == 1.0:
        return 0.0

    def above(x: Floats) -> Floats:
        return _above(x, logit_scale, bias_scale)

    def shifted(x: float, least: float = -math.inf) -> float:
        """Return the mean over u of S(max(least, x - u))."""
        bends = np.array([x - least, x - 0.5, x - 0.5 - bias_scale]) / update_scale
        return float(_mean(lambda part: above(np.maximum(least, x - update_scale * part)), 0.0, 1.0, bends))

    low = float(expit(-_TAIL * logit_scale)) - _BEYOND
    high = float(expit(_TAIL * logit_scale)) + bias_scale + update_scale + _BEYOND
    before = brentq(lambda x: float(above(np.array(x))) - active_share, low, high, xtol=_TOLERANCE)
    after = brentq(lambda x: shifted(x) - active_share, low, high, xtol=_TOLERANCE)
    return 1.0 - shifted(after, before) / active_share


def _above(x: Floats, logit_scale: float, bias_scale: float) -> Floats:
    """Return the part of experts whose sigmoid(logit) + bias is above x."""
    least, most = (_crossing(x - bias, logit_scale) for bias in (bias_scale, 0.0))
    if not bias_scale:
        return np.asarray(ndtr(-most))

    def density(z: Floats) -> Floats:
        part = (expit(logit_scale * z) + bias_scale - x[..., None, None]) / bias_scale
        return np.clip(part, 0.0, 1.0) * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

    bends = np.stack([least, most, np.zeros_like(least)], axis=-1)
    return _mean(density, -_TAIL, _TAIL, bends) * (2 * _TAIL)


def _crossing(score: Floats, logit_scale: float) -> Floats:
    """Return the unit normal whose sigmoid is this score."""
    if not logit_scale:
        return np.where(score < 0.5, -_TAIL, _TAIL)
    with np.errstate(divide="ignore"):  # the logit of 0 and of 1 is infinite
        return np.asarray(np.clip(logit(np.clip(score, 0.0, 1.0)) / logit_scale, -_TAIL, _TAIL))


def _mean(function: Callable[[Floats], Floats], low: float, high: float, bends: Floats) -> Floats:
    """Return the mean over [low, high] of a function that bends at `bends` [..., n]: Gauss-Legendre between them."""
    edges = np.sort(np.clip(bends, low, high), axis=-1)
    ends = edges[..., :1] * 0
    edges = np.concatenate([ends + low, edges, ends + high], axis=-1)
    widths = np.diff(edges, axis=-1)
    inside = function(edges[..., :-1, None] + widths[..., None] * _NODES)
    return np.asarray(((inside @ _WEIGHTS) * widths).sum(axis=-1) / (high - low))
