"""Heatmaps: the grids of a staged search, two dimensions at a time. This is data, which figures draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hpxfer.search.arms import Arm
from hpxfer.search.rounds import ArmHistory, Losses, mean
from hpxfer.search.staged_grid import Stage
from hpxfer.search.values import GridAround, names_in
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.tied import equal_lowest

Cells = tuple[tuple[float, ...], ...]  # losses, [y][x]; +inf where every point diverged


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """Two dimensions of a grid. If the two optima differ, these dimensions interact with others.

    `lowest` is the minimum over all other dimensions, `through_best` the slice through the best point of the grid.
    """

    arm: str
    labels: tuple[str, ...]  # the arm's parameterizations
    shape: str
    stage: str  # broad | fine
    x: str
    y: str
    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    lowest: Cells
    through_best: Cells
    best: tuple[int, int]  # (x, y) indices of the grid's best point
    in_plane: tuple[int, int]  # indices of the best with every other dimension at the grid's center
    at_center: Cells  # the plane through the center

    @property
    def best_nats(self) -> float:
        """The lowest loss of the grid."""
        return self.lowest[self.best[1]][self.best[0]]

    @property
    def cost_nats(self) -> float:
        """What it costs to tune the pair by itself first, and all other dimensions after it."""
        return self.lowest[self.in_plane[1]][self.in_plane[0]] - self.best_nats


def heatmaps(history: ArmHistory) -> Iterator[Heatmap]:
    """Yield a heatmap per stage and pair of dimensions, from the last grid of the stage."""
    last: dict[str, tuple[GridAround, Losses]] = {}
    for ended in history.rounds:
        if isinstance(ended.round.about, Stage) and isinstance(ended.round.points, GridAround):
            last[ended.round.about.name] = (ended.round.points, ended.losses)
    for stage, (grid, losses) in last.items():
        sides = (grid.points,) * len(grid.entries)
        means = np.array([mean(of_seeds) for of_seeds in losses]).reshape(sides)
        if np.isfinite(means).any():
            best = _nearest_lowest(means, grid.points // 2)
            for pair in combinations(range(len(sides)), 2):
                yield _heatmap(history.strategy.arm, stage, grid, means, best, pair)


def _nearest_lowest(means: Floats, middle: int) -> tuple[int, ...]:
    """Return the indices of the lowest loss, and of equal ones those of the fewest steps from the center."""
    lowest = np.stack(np.unravel_index(equal_lowest(means.ravel().tolist()), means.shape), axis=1)
    return tuple(lowest[np.abs(lowest - middle).sum(1).argmin()].tolist())


def _heatmap(
    arm: Arm, stage: str, grid: GridAround, means: Floats, best: Sequence[int], pair: tuple[int, int]
) -> Heatmap:
    middle = grid.points // 2
    others = tuple(at for at in range(means.ndim) if at not in pair)
    planes = means.transpose(*pair, *others)  # [x, y, ...]
    center_XY = _plane(planes, [middle for _ in others])
    in_plane = _nearest_lowest(center_XY, middle)
    x, y = (grid.entries[at] for at in pair)
    return Heatmap(
        arm=arm.name,
        labels=arm.labels,
        shape=arm.shape.label(),
        stage=stage,
        x=x,
        y=y,
        x_values=_values(grid, x),
        y_values=_values(grid, y),
        lowest=_cells(planes.min(axis=tuple(range(2, means.ndim)))),
        through_best=_cells(_plane(planes, [best[at] for at in others])),
        at_center=_cells(center_XY),
        best=(best[pair[0]], best[pair[1]]),
        in_plane=(in_plane[0], in_plane[1]),
    )


def _plane(planes: Floats, at: Sequence[int]) -> Floats:
    """Return [x, y] of [x, y, ...] at these indices of the other dimensions."""
    index: tuple[slice | int, ...] = (slice(None), slice(None), *at)
    return np.asarray(planes[index])


def _values(grid: GridAround, entry: str) -> tuple[float, ...]:
    middle = grid.center.get(names_in(entry)[0])
    return tuple(middle * grid.ratio**step for step in range(-(grid.points // 2), grid.points // 2 + 1))


def _cells(values_XY: Floats) -> Cells:
    return tuple(tuple(row) for row in values_XY.T.tolist())
