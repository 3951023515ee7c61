"""Random pairs: points of a box at random, then every pair of HPs as a 2-D grid around the best (MSSP, Fig. Q.49).

The pairs ask whether the random search ended at an optimum: a lower point in the plane of a pair says that it did not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import check_hp_value
from hpxfer.search.checks import buys, on_log_scale
from hpxfer.search.kinds import SearchKind
from hpxfer.search.protocol import Arm
from hpxfer.search.random_search import RandomSettings, best_of, box_without_lines, random_points
from hpxfer.search.rounds import End, History, Points, Round, lowest_point, mean, search_each_arm
from hpxfer.search.staged_grid import GridOfRatios, HeatmapCell, grid_values, nearest_lowest
from hpxfer.search.stored import Searched, replayed
from hpxfer.search.values import GridAround, bound_text, ends_of_box, values_text
from hpxfer.spec import Problem, SweepSpec, WhyNot

PAIRS = "pairs"


class RandomPairsSettings(RandomSettings):
    """The keys of a search of random points and pairs."""

    pairs: GridOfRatios = GridOfRatios(points=5, ratio=4.0)
    """random-pairs: the grid of every pair of HPs around the best random point. The default is 5 x 5 points at ratio
    4."""


def random_pairs(spec: SweepSpec) -> Points:
    """Yield the rounds of one arm: the random points, and a plane per pair of HPs."""
    settings = spec.search.settings(RandomPairsSettings)
    assert settings.points is not None, "checked with the sweep"
    tried = tuple(random_points(spec, settings.points))
    losses = yield Round(points=tried, why=f"{len(tried)} {settings.sequence} points in {', '.join(spec.grid)}")
    known = list(zip(tried, losses, strict=True))
    first = best_of(spec, known)
    if (center := first.best) is None:
        return first
    edges: dict[object, list[str]] = {}
    for pair in _pairs(spec):
        grid = GridAround(center, pair, settings.pairs.points, float(settings.pairs.ratio))
        losses = yield Round(points=grid, why=f"{first.why}: the plane of {' and '.join(pair)} around it", about=PAIRS)
        known += zip(grid, losses, strict=True)
        for index, point in enumerate(grid):
            at = [(hp, step) for hp, step in zip(pair, grid.steps(index), strict=True) if abs(step) == grid.points // 2]
            edges[point] = [bound_text(hp, point.get(hp), is_highest=step > 0) for hp, step in at]
    best = lowest_point(known)
    assert best is not None, "the center finished"
    end = f"best of all planes at {values_text(spec.grid, best)}"
    return End(why=end if best != center else f"{first.why}, also of all planes", best=best, bounds=tuple(edges[best]))


def _pairs(spec: SweepSpec) -> list[tuple[str, str]]:
    """Return the pairs of HPs that the box draws."""
    return list(combinations([hp for hp, (low, high) in ends_of_box(spec).items() if low < high], 2))


def _rounds(spec: SweepSpec) -> Counter[int]:
    settings = spec.search.settings(RandomPairsSettings)
    return Counter([settings.points or 1]) + Counter({settings.pairs.points**2: len(_pairs(spec))})


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    settings = spec.search.settings(RandomPairsSettings)
    if settings.points is None:
        yield ("search", "points"), "must be given with random-pairs: the random points of each arm"
        return
    if settings.pairs.points % 2 == 0:
        got = settings.pairs.points
        yield ("search", "pairs", "points"), f"must be odd, so that the grid has a center, got {got}"
        return
    if not _pairs(spec):
        yield ("grid",), "must have two HPs with two ends each, so that there is a pair"
    yield from on_log_scale(spec)
    yield from buys(spec, settings.points, "the random points")
    reach = settings.pairs.ratio ** (settings.pairs.points // 2)
    for hp, (_, high) in ends_of_box(spec).items():
        try:
            check_hp_value(hp, high * reach)
        except HpxferError as error:
            yield (
                ("search", "pairs"),
                f"reaches {reach:g} times beyond the grid of {hp}, and {error}; take a smaller one",
            )


def pair_cells(arm: Arm, history: History) -> Iterator[HeatmapCell]:
    """Yield the cells of every plane. The best one is the random point, and that of the pair alone the lowest one."""
    for ended in history.rounds:
        if not isinstance(grid := ended.round.points, GridAround):
            continue
        middle = grid.points // 2
        means = np.array([mean(of_seeds) for of_seeds in ended.losses]).reshape(grid.points, grid.points)
        x_values, y_values = grid_values(grid)
        alone = nearest_lowest(means, middle)
        for at in np.ndindex(means.shape):
            loss = float(means[at]) if math.isfinite(means[at]) else None
            yield HeatmapCell(
                arm=arm.name,
                parameterization=arm.parameterization,
                shape=arm.shape.label(),
                stage=PAIRS,
                x=grid.entries[0],
                y=grid.entries[1],
                x_value=x_values[at[0]],
                y_value=y_values[at[1]],
                lowest_nats=loss,
                through_best_nats=loss,
                at_center_nats=loss,
                is_best=at == (middle, middle),
                is_best_at_center=at == alone,
            )


def _report(results: Searched) -> Iterator[HeatmapCell]:
    for strategy, history in replayed(results):
        yield from pair_cells(strategy.arm, history)


RANDOM_PAIRS = SearchKind(
    name="random-pairs",
    settings=RandomPairsSettings,
    problems=_problems,
    rounds=_rounds,
    make=lambda expansion, stored: search_each_arm(expansion, "random pairs", lambda arm: random_pairs(arm.spec)),
    why_no_line=box_without_lines,
    tunes="points",
    report=_report,
    form="heatmaps",
    stages=(PAIRS,),
)
