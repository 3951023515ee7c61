"""Lines and grids with planted losses: quadratic basins in log2 HP, as the results of a sweep hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from planted_sweeps import cell_of

from hpxfer.verdict.loss_grid import LossGrid, ShapeLosses

GRID = tuple(float(exponent) for exponent in range(-9, -3))
SCALES = (32.0, 64.0, 128.0)
Optima = Mapping[str, Callable[[float], float]]  # parameterization -> log2(scale / base) -> log2 optimum

STAYS: Optima = {"completep-moe": lambda _: -6.2}
MOVES: Optima = {"sp": lambda doublings: -6.2 - doublings}


def line(
    optima: Optima,
    *,
    scales: Sequence[float] = SCALES,
    grid: Sequence[float] = GRID,
    seeds: int = 2,
    noise: float = 0.002,
    curvature: float = 0.04,
    diverges_above: float = math.inf,  # octaves above the optimum
    axis: str = "width",
    luck: int = 7,  # other luck for the same trials
) -> pd.DataFrame:
    """Return a line. The noise at the base is the same for all parameterizations, as its trials are."""
    rows = []
    for label, log2_optimum in optima.items():
        rng = np.random.default_rng(luck)
        for scale in scales:
            doublings = math.log2(scale / scales[0])
            where = {"axis": axis, "scale_name": axis, "scale": scale, "shape": f"w{scale:g}"}
            where |= {"is_base": scale == scales[0], "parameterization": label}
            for exponent, seed in product(grid, range(seeds)):
                off = exponent - log2_optimum(doublings)
                loss = 3.0 - 0.1 * doublings + curvature * off**2 + noise * rng.standard_normal()
                end = (math.nan, "diverged") if off > diverges_above else (loss, "finished")
                rows.append({**where, "value": 2.0**exponent, "seed": seed, "loss": end[0], "status": end[1]})
    return pd.DataFrame(rows)


def with_status(frame: pd.DataFrame, status: str, **where: object) -> pd.DataFrame:
    """Return a copy in which the rows with these column values have this status and no loss."""
    hit = pd.Series(True, index=frame.index)
    for name, value in where.items():
        hit &= frame[name] == value
    assert hit.any(), where
    out = frame.copy()
    out.loc[hit, "status"] = status
    out.loc[hit, "loss"] = math.nan
    return out


def grid_of(*losses: Sequence[Sequence[float]], log2_values: Sequence[float] | None = None) -> LossGrid:
    """Return a grid from (shape, HP, seed) losses, NaN without a result. HPs are one octave apart if not given."""
    x = range(len(losses[0])) if log2_values is None else log2_values
    return LossGrid(
        rows=tuple(
            ShapeLosses(
                axis="width",
                scale_name="width",
                scale=i + 1.0,
                shape=f"w{i + 1}",
                is_base=i == 0,
                parameterization="planted",
                cells=tuple(cell_of(2.0**at, found) for at, found in zip(x, shape, strict=True)),
            )
            for i, shape in enumerate(losses)
        )
    )
