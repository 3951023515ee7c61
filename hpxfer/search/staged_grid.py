"""Staged grid: the LR, a broad grid of multipliers, a fine grid around the best (MSSP's P.1.2), and its heatmaps.

If the best point lies on the edge of a grid, the grid's center moves there along the dimensions that are on the edge,
at most `recenters` times and as long as the budget lasts. Points that grids share are trained once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from pydantic import Field

from hpxfer.scaling.hps import HPs
from hpxfer.search import lr_line
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Arm, above_zero, buys, multiplier_problems, only_lr, varied_hps
from hpxfer.search.rounds import (
    ArmHistory,
    End,
    Losses,
    OutOfBudget,
    Round,
    RoundSearch,
    Strategy,
    mean,
    search_each_arm,
)
from hpxfer.search.values import GridAround, bound_text, names_in, scaled
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import CountOrNone, Problem, Section, Seq, WhyNot
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.trial import Expansion
from hpxfer.verdict.loss_grid import Floats, JudgedLoss
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


STAGES = ("broad", "fine")
MAX_POINTS = 10_000_000  # of a grid of multipliers. More is a typing error
MAX_OCTAVES = 400  # beyond which numbers are not finite, and no optimum lies


class GridOfRatios(Section):
    """A grid around a center, with equal steps on a log scale."""

    points: Annotated[int, Field(ge=3, le=101)]
    """Points per dimension. The number must be odd, so that the grid has a center."""
    ratio: Annotated[float, Field(gt=1, le=1e6)]
    """The factor from one point to the next."""


class StagedSettings(Section):
    """The keys of a staged-grid search."""

    multipliers: Seq[str] | None = None
    """coordinate and staged-grid: the HPs to tune, by name. Names joined by `+` move together.

    coordinate tunes them in this order. Its default is every multiplier that the base has."""
    # An optimum may be 10^6 away from all ones, so the broad grid is wide and moves.
    broad: GridOfRatios = GridOfRatios(points=3, ratio=16.0)
    """staged-grid: the grid of the second stage. The default is 3 points at ratio 16."""
    fine: GridOfRatios = GridOfRatios(points=5, ratio=4.0)
    """staged-grid: the grid of the third stage. The default is 5 points at ratio 4."""
    recenters: CountOrNone = 2
    """staged-grid: how often a stage may move when its best point lies on its edge."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The grid of a round."""

    name: str  # broad | fine
    move: int  # how often it had moved before


@dataclass(frozen=True, kw_only=True)
class _Found:
    hps: HPs
    edges: tuple[str, ...]  # the entries on whose edge it lies
    bounds: tuple[str, ...]  # the HPs of these entries
    why: str


def staged_grid(spec: SweepSpec) -> Strategy:
    """Return the strategy of one arm."""
    settings = spec.search.settings(StagedSettings)
    line = yield from lr_line.best_lr(spec, settings.recenters)
    if line.best is None:
        return line
    best, found_so_far, bounds = line.best, line.why, line.bounds
    entries = settings.multipliers or ()
    for name in STAGES:
        grid, move = _grid(settings, name), 0
        around = GridAround(best, entries, grid.points, float(grid.ratio))
        while True:
            why = f"{found_so_far}: {name} grid, {grid.points}^{len(entries)} points at ratio {grid.ratio:g}"
            try:
                losses = yield Round(points=around, why=why, about=Stage(name=name, move=move))
            except OutOfBudget:
                why = f"{found_so_far}: ends before the {name} grid{' moves' if move else ''}"
                return End(why=why, best=best, bounds=bounds)
            found = _best(around, losses, judged_by(spec))
            if found is None:
                why = f"{found_so_far}: every point of the {name} grid diverged"
                return End(why=why, best=best, bounds=bounds)
            best, found_so_far, bounds = found.hps, found.why, line.bounds + found.bounds
            if not found.edges:
                break
            if move == settings.recenters:
                found_so_far += (
                    f", on its edge in {', '.join(found.edges)} after {move} moves: a bound there, not an optimum"
                )
                break
            move += 1
            found_so_far += f", on its edge in {', '.join(found.edges)}, so it moves"
            around = GridAround(_moved(around, found), entries, around.points, around.ratio)
    return End(why=found_so_far, best=best, bounds=bounds)


def _best(grid: GridAround, losses: Losses, judged: JudgedLoss) -> _Found | None:
    means = [mean(of_seeds) for of_seeds in losses]
    if min(means) == math.inf:
        return None
    # Of equal points the one closest to the center counts: a dimension without effect is no reason to move.
    at = min(equal_lowest(means), key=lambda index: sum(map(abs, grid.steps(index))))
    steps, hps = grid.steps(at), grid[at]
    edges = tuple(entry for entry, step in zip(grid.entries, steps, strict=True) if abs(step) == grid.points // 2)
    bounds = tuple(
        bound_text(name, hps.get(name), is_highest=step > 0)
        for entry, step in zip(grid.entries, steps, strict=True)
        for name in names_in(entry)
        if entry in edges
    )
    values = ", ".join(f"{entry} {hps.get(names_in(entry)[0]):.4g}" for entry in grid.entries)
    why = f"best at {values} ({judged.level(means[at])})"
    return _Found(hps=hps, edges=edges, bounds=bounds, why=why)


def _moved(grid: GridAround, found: _Found) -> HPs:
    """Return the center of the moved grid: the best point along the dimensions on whose edge it lies."""
    center = grid.center
    for entry in found.edges:
        name = names_in(entry)[0]
        center = scaled(center, names_in(entry), found.hps.get(name) / center.get(name))
    return center


def staged_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return the staged grid in every arm, by default in those of the base."""
    spec = expansion.spec
    return search_each_arm(expansion, "staged grid", lambda arm: staged_grid(arm.spec), staged_size(spec))


def _grid(settings: StagedSettings, stage: str) -> GridOfRatios:
    return settings.broad if stage == "broad" else settings.fine


def _dimensions(spec: SweepSpec) -> int:
    return len(spec.search.settings(StagedSettings).multipliers or ())


def _grid_sizes(spec: SweepSpec) -> list[int]:
    settings = spec.search.settings(StagedSettings)
    return [int(_grid(settings, stage).points ** _dimensions(spec)) for stage in STAGES]


def staged_size(spec: SweepSpec, moves: int | None = None) -> int:
    """Return the points of an arm if each grid moves so many times. The default is the most."""
    moves = spec.search.settings(StagedSettings).recenters if moves is None else moves
    return lr_line.line_size(spec, moves) + (1 + moves) * sum(_grid_sizes(spec))


def _rounds(spec: SweepSpec) -> Counter[int]:
    moves = spec.search.settings(StagedSettings).recenters
    return Counter(_grid_sizes(spec) * (1 + moves)) + lr_line.line_rounds(spec, moves)


def _hps(spec: SweepSpec) -> tuple[str, ...]:
    return varied_hps(spec, spec.search.settings(StagedSettings).multipliers)


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    settings = spec.search.settings(StagedSettings)
    at: KeyPath = ("search", "multipliers")
    if not settings.multipliers:
        yield at, "must name the HPs of the grid with staged-grid, e.g. [init_scale, router.lr_mult]"
        return
    if "lr" not in spec.grid:
        yield ("grid", "lr"), "must be given with staged-grid, whose first stage is the line of lr"
        return
    yield from only_lr(spec)
    yield from above_zero("lr", spec.grid["lr"])
    yield from multiplier_problems(spec, settings.multipliers, why_not, dotted=False)
    too_large = False
    for stage in STAGES:
        grid = _grid(settings, stage)
        if grid.points % 2 == 0:
            yield ("search", stage, "points"), f"must be odd, so that the grid has a center, got {grid.points}"
        if grid.points ** _dimensions(spec) > MAX_POINTS:
            too_large = True
            yield ("search", stage, "points"), f"must leave at most {MAX_POINTS} points in all the dimensions"
        if (1 + settings.recenters) * (grid.points // 2) * math.log2(grid.ratio) > MAX_OCTAVES:
            yield ("search", stage), f"must stay within {MAX_OCTAVES} octaves of its center, its moves counted"
    if not too_large:
        yield from buys(spec, staged_size(spec, moves=0), "each of the three stages once")


STAGED_GRID = SearchKind(
    name="staged-grid",
    settings=StagedSettings,
    problems=_problems,
    size=staged_size,
    rounds=_rounds,
    make=staged_search,
    hps=_hps,
    where="base",
    tunes="points",
    shows="heatmaps",
)
