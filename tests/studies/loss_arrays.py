"""A grid of losses as arrays: I shapes by scale, K HP values ascending, S seeds."""

from __future__ import annotations

import numpy as np

from hpxfer.intervals import Floats
from hpxfer.verdict.loss_grid import LossGrid


def log2_values(grid: LossGrid) -> Floats:
    """Return log2 of the HP values of a grid, (K,)."""
    return np.asarray(np.log2(np.array(grid.values, dtype=float)))


def losses(grid: LossGrid) -> Floats:
    """Return the losses of a grid in nats, (I, K, S): NaN where there is no result, +inf where a seed diverged."""
    at_value = {value: k for k, value in enumerate(grid.values)}
    at_seed = {seed: s for s, seed in enumerate(sorted({seed for row in grid.rows for seed in row.seeds}))}
    out = np.full((len(grid.rows), len(at_value), len(at_seed)), np.nan)
    for i, row in enumerate(grid.rows):
        for cell in row.cells:
            for seed, loss in zip(cell.seeds, cell.losses, strict=True):
                out[i, at_value[cell.value], at_seed[seed]] = loss
    return out
