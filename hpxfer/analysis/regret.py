"""Regret over scale: does what the transferred HP costs grow, and is it small against what scaling gains?

Whether the transfer is fast (arXiv 2512.22768) is a matter of how both vanish with scale: see `fast_transfer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.analysis.cube import Floats


@dataclass(frozen=True, kw_only=True)
class RegretTrend:
    """Slopes over log2 scale, in nats per doubling, of the shapes where both losses were measured."""

    regret_nats_per_doubling: float
    regret_se: float | None  # from the errors of the regrets; None with one seed
    gain_nats_per_doubling: float  # how fast the best loss falls; negative if it rises
    num_shapes: int

    @property
    def share_of_gain(self) -> float | None:
        """Return what part of each doubling's gain the regret eats; None if doubling gains nothing."""
        if self.gain_nats_per_doubling <= 0:
            return None
        return self.regret_nats_per_doubling / self.gain_nats_per_doubling


def regret_trend(
    scales: Sequence[float],
    best: Sequence[float | None],
    regret: Sequence[float | None],
    se: Sequence[float | None],
) -> RegretTrend | None:
    """Return the trend over the shapes with a finite regret; None below two different scales.

    The base's regret is zero without error, so where errors are known they enter unweighted, by the law of the slope.
    """
    kept = [
        (math.log2(scale), one, cost, error)
        for scale, one, cost, error in zip(scales, best, regret, se, strict=True)
        if one is not None and cost is not None and math.isfinite(cost)
    ]
    if len({x for x, *_ in kept}) < 2:
        return None
    x, loss, cost = (np.array([row[i] for row in kept], dtype=float) for i in range(3))
    errors = [row[3] for row in kept]
    lever = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    known = None if any(one is None for one in errors) else np.array(errors, dtype=float)
    return RegretTrend(
        regret_nats_per_doubling=_dot(lever, cost),
        regret_se=None if known is None else math.sqrt(_dot(lever**2, known**2)),
        gain_nats_per_doubling=-_dot(lever, loss),
        num_shapes=len(kept),
    )


def _dot(one: Floats, other: Floats) -> float:
    return float(one @ other)
