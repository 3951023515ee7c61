"""Staged grid: the LR, a broad grid of multipliers, a fine grid around the best (MSSP's P.1.2), and its heatmaps.

If the best point lies on the edge of a grid, the grid's center moves there along the dimensions that are on the edge,
at most `recenters` times and as long as the budget lasts. Points that grids share are trained once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated

import numpy as np
from pydantic import Field

from hpxfer.intervals import Floats, equal_lowest
from hpxfer.scaling.hps import HPs
from hpxfer.search.checks import buys, multiplier_problems, on_log_scale, varied_hps
from hpxfer.search.kinds import SearchKind
from hpxfer.search.line import best_lr, line_rounds
from hpxfer.search.protocol import Arm
from hpxfer.search.rounds import End, History, OutOfBudget, Points, Round, mean, search_each_arm
from hpxfer.search.stored import Searched, replayed
from hpxfer.search.values import GridAround, bound_text, names_in, scaled, values_text
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import CountOrNone, KeyPath, Problem, Section, Seq, SweepSpec, WhyNot

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

    @property
    def grids(self) -> dict[str, GridOfRatios]:
        """Stage -> its grid."""
        return {"broad": self.broad, "fine": self.fine}

    @property
    def sizes(self) -> list[int]:
        """The points of the grid of each stage."""
        return [int(grid.points ** len(self.multipliers or ())) for grid in self.grids.values()]


def staged_grid(spec: SweepSpec) -> Points:
    """Yield the rounds of one arm. `about` of a grid's round is its stage."""
    settings, judged = spec.search.settings(StagedSettings), judged_by(spec)
    line = yield from best_lr(spec, settings.recenters)
    if line.best is None:
        return line
    end, best, entries = line, line.best, settings.multipliers or ()
    for name, stage in settings.grids.items():
        grid = GridAround(best, entries, stage.points, float(stage.ratio))
        for move in range(settings.recenters + 1):
            why = f"{end.why}: {name} grid, {grid.points}^{len(entries)} points at ratio {grid.ratio:g}"
            try:
                losses = yield Round(points=grid, why=why, about=name)
            except OutOfBudget:
                return replace(end, why=f"{end.why}: ends before the {name} grid{' moves' if move else ''}")
            means = [mean(of_seeds) for of_seeds in losses]
            if min(means) == math.inf:
                return replace(end, why=f"{end.why}: every point of the {name} grid diverged")
            # Of equal points the one closest to the center: a dimension without effect is no reason to move.
            at = min(equal_lowest(means), key=lambda index: sum(map(abs, grid.steps(index))))
            best = grid[at]
            steps = zip(entries, grid.steps(at), strict=True)
            edges = {entry: step for entry, step in steps if abs(step) == grid.points // 2}
            why = f"best at {values_text(entries, best)} ({judged.level(means[at])})"
            if edges:
                why += f", on its edge in {', '.join(edges)}"
                is_last = move == settings.recenters
                why += f" after {move} moves: a bound there, not an optimum" if is_last else ", so it moves"
            names = [(hp, step > 0) for entry, step in edges.items() for hp in names_in(entry)]
            bounds = [bound_text(hp, best.get(hp), is_highest=is_highest) for hp, is_highest in names]
            end = End(why=why, best=best, bounds=(*line.bounds, *bounds))
            if not edges:
                break
            grid = replace(grid, center=_moved(grid, best, edges))
    return end


def _moved(grid: GridAround, best: HPs, edges: Iterable[str]) -> HPs:
    """Return the center of the moved grid: the best point along the dimensions on whose edge it lies."""
    first = {entry: names_in(entry)[0] for entry in edges}
    return scaled(grid.center, *((entry, best.get(hp) / grid.center.get(hp)) for entry, hp in first.items()))


def _rounds(spec: SweepSpec) -> Counter[int]:
    settings = spec.search.settings(StagedSettings)
    return Counter(settings.sizes * (1 + settings.recenters)) + line_rounds(spec, settings.recenters)


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    settings = spec.search.settings(StagedSettings)
    at: KeyPath = ("search", "multipliers")
    if not settings.multipliers:
        yield at, "must name the HPs of the grid with staged-grid, e.g. [init_scale, router.lr_mult]"
        return
    if "lr" not in spec.grid:
        yield ("grid", "lr"), "must be given with staged-grid, whose first stage is the line of lr"
        return
    yield from on_log_scale(spec)
    yield from multiplier_problems(spec, settings.multipliers, why_not, dotted=False)
    for (stage, grid), size in zip(settings.grids.items(), settings.sizes, strict=True):
        if grid.points % 2 == 0:
            yield ("search", stage, "points"), f"must be odd, so that the grid has a center, got {grid.points}"
        if size > MAX_POINTS:
            yield ("search", stage, "points"), f"must leave at most {MAX_POINTS} points in all the dimensions"
        if (1 + settings.recenters) * (grid.points // 2) * math.log2(grid.ratio) > MAX_OCTAVES:
            yield ("search", stage), f"must stay within {MAX_OCTAVES} octaves of its center, its moves counted"
    if max(settings.sizes) <= MAX_POINTS:
        once = len(spec.grid["lr"].numbers()) + sum(settings.sizes)
        yield from buys(spec, once, "each of the three stages once")


@dataclass(frozen=True, kw_only=True)
class HeatmapCell:
    """A pair of values of two dimensions, in the last grid of a stage, or in a plane of `pairs`.

    Losses are None where everything diverged.
    """

    arm: str
    parameterization: str
    shape: str
    stage: str  # broad | fine | pairs
    x: str
    y: str
    x_value: float
    y_value: float
    lowest_nats: float | None  # over all values of the other dimensions
    through_best_nats: float | None  # with the other dimensions at the best point of the whole grid
    at_center_nats: float | None  # with the other dimensions at the center of the grid, where the stage before ended
    is_best: bool  # whether it holds the best point of the whole grid
    is_best_at_center: bool  # whether it is where tuning the pair by itself would end


def heatmap_cells(arm: Arm, history: History) -> Iterator[HeatmapCell]:
    """Yield the cells of each stage and pair of dimensions, from the last grid of the stage. y changes fastest."""
    last = {
        ended.round.about: (ended.round.points, ended.losses)
        for ended in history.rounds
        if isinstance(ended.round.points, GridAround)
    }
    for stage, (grid, losses) in last.items():
        middle = grid.points // 2
        means = np.array([mean(of_seeds) for of_seeds in losses]).reshape((grid.points,) * len(grid.entries))
        if not np.isfinite(means).any():
            continue
        best = nearest_lowest(means, middle)
        values = grid_values(grid)
        for x, y in combinations(range(means.ndim), 2):
            others = [at for at in range(means.ndim) if at not in (x, y)]
            planes = means.transpose(*others, x, y)
            lowest_XY = planes.min(axis=tuple(range(len(others))))
            best_XY, center_XY = planes[tuple(best[at] for at in others)], planes[(middle,) * len(others)]
            alone = nearest_lowest(center_XY, middle)
            for at in np.ndindex(lowest_XY.shape):
                yield HeatmapCell(
                    arm=arm.name,
                    parameterization=arm.parameterization,
                    shape=arm.shape.label(),
                    stage=stage,
                    x=grid.entries[x],
                    y=grid.entries[y],
                    x_value=values[x][at[0]],
                    y_value=values[y][at[1]],
                    lowest_nats=_finite(lowest_XY[at]),
                    through_best_nats=_finite(best_XY[at]),
                    at_center_nats=_finite(center_XY[at]),
                    is_best=at == (best[x], best[y]),
                    is_best_at_center=at == alone,
                )


def grid_values(grid: GridAround) -> list[list[float]]:
    """Return the values of each dimension of a grid, ascending."""
    middle = grid.points // 2
    centers = (grid.center.get(names_in(entry)[0]) for entry in grid.entries)
    return [[center * grid.ratio**step for step in range(-middle, middle + 1)] for center in centers]


def _finite(loss: float) -> float | None:
    return float(loss) if math.isfinite(loss) else None


def _report(results: Searched) -> Iterator[HeatmapCell]:
    for strategy, history in replayed(results):
        yield from heatmap_cells(strategy.arm, history)


def nearest_lowest(means: Floats, middle: int) -> tuple[int, ...]:
    """Return the indices of the lowest loss, and of equal ones those of the fewest steps from the center."""
    lowest = np.stack(np.unravel_index(equal_lowest(means.ravel().tolist()), means.shape), axis=1)
    return tuple(lowest[np.abs(lowest - middle).sum(1).argmin()].tolist())


STAGED_GRID = SearchKind(
    name="staged-grid",
    settings=StagedSettings,
    problems=_problems,
    rounds=_rounds,
    make=lambda expansion, stored: search_each_arm(expansion, "staged grid", lambda arm: staged_grid(arm.spec)),
    hps=lambda spec: varied_hps(spec, spec.search.settings(StagedSettings).multipliers),
    where="base",
    tunes="points",
    report=_report,
    form="heatmaps",
    stages=STAGES,
)
