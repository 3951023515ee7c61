"""Regret over scale: does the regret of the transferred HP grow, and is it small against the gain from scaling?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.verdict.loss_grid import Floats


@dataclass(frozen=True, kw_only=True)
class RegretTrend:
    """Slopes over log2 scale, in nats per doubling, over the shapes where both losses were measured."""

    regret_nats_per_doubling: float
    regret_se: float | None  # from the errors of the regrets; None with one seed
    gain_nats_per_doubling: float  # how fast the best loss falls; negative if it rises
    num_shapes: int

    @property
    def share_of_gain(self) -> float | None:
        """Growth of the regret per doubling, as a fraction of the gain in loss; None if doubling gains nothing."""
        if self.gain_nats_per_doubling <= 0:
            return None
        return self.regret_nats_per_doubling / self.gain_nats_per_doubling


def regret_trend(
    scales: Sequence[float],
    best: Sequence[float | None],
    regret: Sequence[float | None],
    se: Sequence[float | None],
) -> RegretTrend | None:
    """Return the trend over the shapes with a finite regret; None with fewer than two different scales.

    The slope is unweighted. The errors of all regrets propagate to it, that of the base included.
    """
    kept = [
        (math.log2(scale), loss, cost, error)
        for scale, loss, cost, error in zip(scales, best, regret, se, strict=True)
        if loss is not None and cost is not None and math.isfinite(cost)
    ]
    if len({x for x, *_ in kept}) < 2:
        return None
    x, losses, costs = (np.array([row[i] for row in kept], dtype=float) for i in range(3))
    errors = [row[3] for row in kept]
    lever = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    known = None if any(error is None for error in errors) else np.array(errors, dtype=float)
    return RegretTrend(
        regret_nats_per_doubling=_dot(lever, costs),
        regret_se=None if known is None else math.sqrt(_dot(lever**2, known**2)),
        gain_nats_per_doubling=-_dot(lever, losses),
        num_shapes=len(kept),
    )


def _dot(a: Floats, b: Floats) -> float:
    return float(a @ b)
