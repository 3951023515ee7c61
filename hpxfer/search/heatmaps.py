"""Heatmaps: the grids of a staged search, two dimensions at a time. This is data, which figures draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hpxfer.search.rounds import ArmHistory, Losses, mean
from hpxfer.search.staged_grid import Stage
from hpxfer.search.values import GridAround, names_in

Cells = tuple[tuple[float, ...], ...]  # nats, [y][x]; +inf where every point diverged


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """Two dimensions of a grid. If the two optima differ, these dimensions interact with others.

    `lowest` is the minimum over all other dimensions, `through_best` the slice through the best point of the grid.
    """

    arm: str
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


def heatmaps(history: ArmHistory) -> Iterator[Heatmap]:
    """Yield a heatmap per stage and pair of dimensions, from the last grid of the stage."""
    last: dict[str, tuple[GridAround, Losses]] = {}
    for ended in history.rounds:
        if isinstance(ended.round.about, Stage) and isinstance(ended.round.points, GridAround):
            last[ended.round.about.name] = (ended.round.points, ended.losses)
    for stage, (grid, losses) in last.items():
        means = [mean(of_seeds) for of_seeds in losses]
        if min(means) < math.inf:
            for first, second in combinations(range(len(grid.entries)), 2):
                yield _heatmap(history.strategy.arm.name, stage, grid, means, (first, second))


def _heatmap(arm: str, stage: str, grid: GridAround, means: Sequence[float], pair: tuple[int, int]) -> Heatmap:
    half = grid.points // 2
    steps_of = [grid.steps(index) for index in range(len(grid))]
    best = steps_of[min(range(len(means)), key=lambda at: (means[at], sum(map(abs, steps_of[at]))))]
    lowest: dict[tuple[int, int], float] = {}
    through: dict[tuple[int, int], float] = {}
    center: dict[tuple[int, int], float] = {}
    others = [at for at in range(len(grid.entries)) if at not in pair]
    for steps, value in zip(steps_of, means, strict=True):
        at = (steps[pair[0]] + half, steps[pair[1]] + half)
        lowest[at] = min(value, lowest.get(at, math.inf))
        if all(steps[other] == best[other] for other in others):
            through[at] = value
        if all(steps[other] == 0 for other in others):
            center[at] = value
    x, y = (grid.entries[at] for at in pair)
    return Heatmap(
        arm=arm,
        stage=stage,
        x=x,
        y=y,
        x_values=_values(grid, x),
        y_values=_values(grid, y),
        lowest=_cells(lowest, grid.points),
        through_best=_cells(through, grid.points),
        at_center=_cells(center, grid.points),
        best=(best[pair[0]] + half, best[pair[1]] + half),
        in_plane=min(sorted(center), key=center.__getitem__),
    )


def _values(grid: GridAround, entry: str) -> tuple[float, ...]:
    middle = grid.center.get(names_in(entry)[0])
    return tuple(middle * grid.ratio**step for step in range(-(grid.points // 2), grid.points // 2 + 1))


def _cells(values: Mapping[tuple[int, int], float], points: int) -> Cells:
    return tuple(tuple(values[x, y] for x in range(points)) for y in range(points))
