"""The noise floor: how large a difference between two HP values the choice of seeds alone can make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses

# The variance of a median over that of a mean, for normal noise and many seeds. It is lower for few: 1.35 at three.
MEDIAN_VARIANCE = math.pi / 2


def cells_near_optimum(row: ShapeLosses, *values: float | None) -> tuple[SeedLosses, ...]:
    """Return the cells whose noise matters for a regret: the best one, its two neighbors, and those at `values`.

    Other cells do not count: far up the basin, close to divergence, seeds scatter more than where HPs are compared.
    """
    finite = [cell for cell in row.cells if cell.finite and not cell.censored]
    if not finite:
        return ()
    best = min(range(len(finite)), key=lambda i: (finite[i].median, i))
    return tuple(cell for i, cell in enumerate(finite) if abs(i - best) <= 1 or cell.value in values)


def seed_noise(cells: Iterable[SeedLosses]) -> float | None:
    """Return the standard deviation of one seed's loss, in nats, pooled over cells; None if no cell has two seeds."""
    finite = [cell.finite for cell in cells]
    freedom = sum(len(losses) - 1 for losses in finite if losses)
    if freedom == 0:
        return None
    squares = sum(float(np.var(losses)) * len(losses) for losses in finite if losses)
    return math.sqrt(squares / freedom)


def paired_noise(shapes: Iterable[Sequence[SeedLosses]]) -> float | None:
    """Return the standard deviation of one seed's loss, without the part that it adds to all cells of a shape alike.

    The trials of a seed share their batches and initial draws, so much of its effect cancels in a difference of two
    HPs. The result is pooled over `shapes`; each holds the cells that a regret there rests on. A seed counts if every
    cell of the shape has it. None if no shape has two such seeds and two cells.
    """
    squares, freedom = 0.0, 0
    for cells in shapes:
        losses = [cell.by_seed for cell in cells]
        seeds = [seed for seed in sorted(losses[0]) if _in_all(losses, seed)] if losses else []
        if len(seeds) > 1 and len(cells) > 1:
            table = np.array([[cell[seed] for seed in seeds] for cell in losses])
            rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
            squares += float((rest**2).sum())
            freedom += (len(cells) - 1) * (len(seeds) - 1)
    return math.sqrt(squares / freedom) if freedom else None


def _in_all(losses: Sequence[Mapping[int, float]], seed: int) -> bool:
    return all(math.isfinite(cell.get(seed, math.inf)) for cell in losses)


def difference_se(noise: float, a: SeedLosses, b: SeedLosses) -> float:
    """Return the standard error of the difference of the medians of two cells, in nats; 0 for a cell and itself.

    `noise` is `paired_noise`, or `seed_noise`, which is larger, where seeds are not paired.
    """
    if a == b:
        return 0.0
    return noise * math.sqrt(_median_variance(len(a.finite)) + _median_variance(len(b.finite)))


def _median_variance(num_seeds: int) -> float:
    """Return an upper bound of the variance of a median, in units of one seed's. The median of two is their mean."""
    return (MEDIAN_VARIANCE if num_seeds > 2 else 1.0) / num_seeds
