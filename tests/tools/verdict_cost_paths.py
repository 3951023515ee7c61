"""How the doubt about planted sweeps falls with the FLOPs spent: by a grid, by refine and by a verdict search.

A grid trains seed after seed, in each seed shape after shape. Refine widens and halves the line of every shape with all
seeds at once, round by round, and then tries the base's best value everywhere. Both train the control beside the
parameterization that is judged, as they do in a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from foreign_worlds import World
from planted_sweeps import cell_of
from verdict_cost_cases import Arm, Case, planted_flops

from hpxfer.scaling.hps import HPs
from hpxfer.search.bracket import MeasuredLine
from hpxfer.search.refine import RefineSettings, refine
from hpxfer.search.values import exponent_of
from hpxfer.search.verdict_doubts import doubts
from hpxfer.verdict.loss_grid import LossGrid, ShapeLosses
from hpxfer.verdict.rules import Rules

LOOKS = 10
MOST = 0.5
Point = tuple[float, float]  # share of the grid's FLOPs, doubt about the judged line


@dataclass(frozen=True)
class Done:
    """A trial that has ended."""

    arm: int
    shape: int
    x: float  # log2 HP
    seed: int


def grid_order(world: World, arms: int) -> Iterator[Done]:
    """Yield the trials of a grid."""
    for seed in range(world.seeds):
        for shape in range(world.num_shapes):
            for arm in range(arms if shape else 1):
                yield from (Done(arm, shape, x, seed) for x in world.x)


def refine_order(world: World, arms: Sequence[Arm]) -> Iterator[Done]:
    """Yield the trials of a refine search with its default settings."""
    settings = RefineSettings()
    start, given = HPs(lr=2.0 ** world.x[0]), tuple(2.0**x for x in world.x)
    best: float | None = None
    lines = [(arm, shape) for shape in range(world.num_shapes) for arm in range(len(arms) if shape else 1)]
    for arm, shape in lines:
        line = MeasuredLine(hp="lr", start=start, given=given)
        played = refine(line, settings.until_octaves, settings.max_octaves)
        asked = next(played)
        while True:
            exponents = [exponent_of(point.lr) for point in asked.points]
            yield from (Done(arm, shape, x, seed) for x in exponents for seed in range(world.seeds))
            losses = [tuple(arms[arm].loss(shape, x, seed) for seed in range(world.seeds)) for x in exponents]
            try:
                asked = played.send(losses)
            except StopIteration as stop:
                if shape == 0 and stop.value.best is not None:
                    best = exponent_of(stop.value.best.lr)
                break
    if best is not None:
        yield from (Done(arm, shape, best, seed) for arm, shape in lines if shape for seed in range(world.seeds))


def path_of(world: World, arms: Sequence[Arm], order: Sequence[Done], rules: Rules) -> list[Point]:
    """Return the doubt after every tenth of the FLOPs of an order."""
    flops, grid = planted_flops(world.num_shapes), grid_flops(world, len(arms))
    spent = np.cumsum([flops[done.shape] for done in order])
    out = []
    for look in range(1, LOOKS + 1):
        ended = [done for done, cost in zip(order, spent, strict=True) if cost <= spent[-1] * look / LOOKS * (1 + 1e-9)]
        whole = {done.shape for done in ended if done.arm == 0} == set(range(world.num_shapes))
        size = doubts([_grid(world, arms[0], ended)], rules)[0].size if whole else MOST
        out.append((float(spent[-1]) * look / LOOKS / grid, size))
    return out


def grid_flops(world: World, arms: int) -> float:
    """Return the FLOPs of the grid. The arms share the base."""
    flops = planted_flops(world.num_shapes)
    return (flops[0] + arms * math.fsum(flops[1:])) * len(world.x) * world.seeds


def _grid(world: World, arm: Arm, ended: Sequence[Done]) -> LossGrid:
    rows = []
    for shape in range(world.num_shapes):
        own = {done for done in ended if done.shape == shape and done.arm == 0}
        scale = 32.0 * 2.0**shape
        cells = tuple(
            cell_of(
                2.0**x, [arm.loss(shape, x, s) if Done(0, shape, x, s) in own else math.nan for s in range(world.seeds)]
            )
            for x in sorted({done.x for done in own})
        )
        rows.append(
            ShapeLosses(
                axis="width",
                scale_name="width",
                scale=scale,
                shape=f"width{scale:g}",
                is_base=shape == 0,
                parameterization="world",
                cells=cells,
            )
        )
    return LossGrid(rows=tuple(rows))


def mean_paths(paths: Sequence[Sequence[Point]], shares: Sequence[float]) -> tuple[Point, ...]:
    """Return the mean doubt at each share of the grid's FLOPs. A path stays where it ended."""

    def at(path: Sequence[Point], share: float) -> float:
        return next((doubt for spent, doubt in reversed(path) if spent <= share + 1e-9), MOST)

    return tuple((share, float(np.mean([at(path, share) for path in paths]))) for share in shares)


def three_paths(world: World, case: Case, verdict: Sequence[Point], rules: Rules) -> dict[str, list[Point]]:
    """Return the path of each search on one sweep. That of the verdict search is known."""
    arms = case.arms
    orders: dict[str, Callable[[], Iterator[Done]]] = {
        "grid": lambda: grid_order(world, len(arms)),
        "refine": lambda: refine_order(world, arms),
    }
    return {
        **{name: path_of(world, arms, list(order()), rules) for name, order in orders.items()},
        "verdict": list(verdict),
    }
