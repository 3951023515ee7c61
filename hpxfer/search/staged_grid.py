"""Staged grid: the LR, then a broad grid of multipliers, then a fine grid around the best point, as in MSSP's P.1.2.

If the best point lies on the edge of a grid, the grid's center moves there along the dimensions that are on the edge,
at most `recenters` times and as long as the budget lasts. Points that grids share are trained once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hpxfer.scaling.hps import HPs
from hpxfer.search import lr_line
from hpxfer.search.checks import above_zero, buys, multiplier_problems, only_lr, varied_hps
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.rounds import End, Losses, OutOfBudget, Round, RoundSearch, Strategy, mean, search_each_arm
from hpxfer.search.values import GridAround, bound_text, names_in, scaled
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import CountOrNone, Section, Seq
from hpxfer.spec.problem import Problem, WhyNot
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.trial import Expansion
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.tied import equal_lowest

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
