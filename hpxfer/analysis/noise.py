"""The noise floor: how much of a difference between two cells is the seeds'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpxfer.analysis.basin import Basin, Point

# Variance of a median over that of a mean, for normal noise and many seeds; for fewer it is lower (1.35 at three).
MEDIAN_VARIANCE = math.pi / 2


def cells_near_optimum(basin: Basin, *values: float | None) -> tuple[Point, ...]:
    """Return the points whose noise matters to a regret: the best one, its neighbors, and those at `values`.

    Far up the basin, next to divergence, seeds scatter more than where two HPs are compared.
    """
    finite = [point for point in basin.points if point.finite and not point.censored]
    if not finite:
        return ()
    best = min(range(len(finite)), key=lambda i: (finite[i].median, i))
    return tuple(point for i, point in enumerate(finite) if abs(i - best) <= 1 or point.value in values)


def seed_noise(cells: Iterable[Point]) -> float | None:
    """Return the standard deviation of one seed's loss, in nats, pooled over cells; None if no cell has two seeds."""
    finite = [cell.finite for cell in cells]
    freedom = sum(len(losses) - 1 for losses in finite if losses)
    if freedom == 0:
        return None
    squares = sum(float(np.var(losses)) * len(losses) for losses in finite if losses)
    return math.sqrt(squares / freedom)


def paired_noise(shapes: Iterable[Sequence[Point]]) -> float | None:
    """Return the standard deviation of one seed's loss once what its seed adds to all cells of a shape is taken off.

    A seed's trials share batches and initial draws, so much of its luck cancels in a difference of two HPs. Pooled
    over `shapes`, each the cells that a regret there rests on; a seed counts where no cell of its shape lacks it. None
    if no shape has two such seeds and two cells.
    """
    squares, freedom = 0.0, 0
    for cells in shapes:
        losses = [dict(zip(cell.seeds, cell.losses, strict=True)) for cell in cells]
        seeds = [seed for seed in sorted(losses[0]) if _in_all(losses, seed)] if losses else []
        if len(seeds) > 1 and len(cells) > 1:
            table = np.array([[cell[seed] for seed in seeds] for cell in losses])
            rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
            squares += float((rest**2).sum())
            freedom += (len(cells) - 1) * (len(seeds) - 1)
    return math.sqrt(squares / freedom) if freedom else None


def _in_all(losses: Sequence[Mapping[int, float]], seed: int) -> bool:
    return all(math.isfinite(cell.get(seed, math.inf)) for cell in losses)


def difference_se(noise: float, a: Point, b: Point) -> float:
    """Return the standard error of the difference of two cells' medians, in nats; 0 for a cell and itself.

    `noise` is `paired_noise`, or `seed_noise` where seeds are not paired, which is larger.
    """
    if a == b:
        return 0.0
    return noise * math.sqrt(_median_variance(len(a.finite)) + _median_variance(len(b.finite)))


def _median_variance(num_seeds: int) -> float:
    """Return an upper bound for the variance of a median, in units of one seed's. Up to two it is the mean."""
    return (MEDIAN_VARIANCE if num_seeds > 2 else 1.0) / num_seeds
