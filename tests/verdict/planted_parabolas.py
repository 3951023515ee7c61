"""Planted parabolas: losses at HP values an octave apart, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from planted_lines import grid_of

from hpxfer.intervals import Floats
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure

X = np.arange(-9.0, -2.0)


def parabolas(
    optima: Sequence[float], noise: float, *, curvature: float, fall: float = 0.0, seeds: int, luck: int, x: Floats = X
) -> Floats:
    """Return losses (I, K, S) of basins whose lowest loss falls by so many nats from shape to shape."""
    rng = np.random.default_rng(luck)
    mean_IK = 3 + curvature * (x - np.array(optima)[:, None]) ** 2 - fall * np.arange(len(optima))[:, None]
    return np.asarray(mean_IK[:, :, None] + noise * rng.standard_normal((len(optima), x.size, seeds)))


def parabola(
    noise: float = 0.005, *, shapes: int = 3, seeds: int = 3, curvature: float = 0.02, luck: int = 0
) -> Floats:
    """Return losses (I, K, S) of basins with their optimum at 2^-6.2."""
    return parabolas((-6.2,) * shapes, noise, seeds=seeds, curvature=curvature, luck=luck)


def grid_at(loss_IKS: Floats, x: Floats = X) -> LossGrid:
    return grid_of(*loss_IKS.tolist(), log2_values=x.tolist())


def all_of(loss_IKS: Floats) -> tuple[Measured, ...]:
    return measure(grid_at(loss_IKS).rows)
