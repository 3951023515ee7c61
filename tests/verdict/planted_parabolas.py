"""Planted parabolas: losses at seven HP values, and what is measured of them."""

from __future__ import annotations

import numpy as np
from planted_lines import grid_of

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure

X = np.arange(-9.0, -2.0)


def parabola(
    noise: float = 0.005, *, shapes: int = 3, seeds: int = 3, curvature: float = 0.02, luck: int = 0
) -> Floats:
    """Return losses (I, K, S) of basins with their optimum at 2^-6.2."""
    rng = np.random.default_rng(luck)
    mean_K = 3 + curvature * (X + 6.2) ** 2
    return np.asarray(mean_K[:, None] + noise * rng.standard_normal((shapes, X.size, seeds)))


def all_of(loss_IKS: Floats) -> tuple[Measured, ...]:
    return measure(grid_of(*loss_IKS.tolist(), log2_values=X.tolist()).rows)
