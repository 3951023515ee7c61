"""The cost of one verdict: what a search says of a sweep and spends on it, beside what the whole grid says.

A grid trains seed after seed, in each seed shape after shape. Refine widens and halves the line of every shape with all
seeds at once, round by round, and then tries the base's best value everywhere. Both train the control beside the
parameterization that is judged, as they do in a sweep. The doubt of each is followed as the FLOPs are spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from foreign_worlds import World
from planted_sweeps import row_of as shape_row
from verdict_cost_cases import Arm, Case, planted_flops

from hpxfer.scaling.hps import HPs
from hpxfer.search.line import Line
from hpxfer.search.refine import RefineSettings, refine
from hpxfer.search.rounds import History
from hpxfer.search.values import exponent_of
from hpxfer.search.verdict import Look, VerdictRounds
from hpxfer.search.verdict_lines import all_flops, doubts
from hpxfer.verdict.findings import Rules, Verdict
from hpxfer.verdict.loss_grid import LossGrid

RULES = Rules(error=0.02)
LOOKS = 10
MOST = 0.5
Point = tuple[float, float]  # share of the grid's FLOPs, doubt about the judged line


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One sweep: the verdicts on the judged line and on its control, from the grid and by the search."""

    name: str
    seed: int
    of_grid: tuple[Verdict, ...]
    of_search: tuple[Verdict | None, ...]  # None: not asked for
    share: float  # of the grid's FLOPs
    num_looks: int
    path: tuple[tuple[float, float], ...]  # (share of the grid's FLOPs, doubt about the judged line) at each look
    truly_transfers: bool | None = None  # the HP that the grid transfers; None if the truth is not known
    grid_is_wrong: bool | None = None  # about the judged line
    search_is_wrong: bool | None = None
    paths: dict[str, list[Point]] = field(default_factory=dict)  # of each kind of search, where they are asked for

    @property
    def decided(self) -> bool:
        """Whether the grid decides the judged line."""
        return self.of_grid[0] != "undecided"

    @property
    def same(self) -> bool:
        """Whether the search says of the judged line what the grid says."""
        return self.of_search[0] == self.of_grid[0]


def play(case: Case, rules: Rules = RULES) -> list[Look]:
    """Return the looks of a search that may train the whole grid."""
    rounds = VerdictRounds(lines=case.lines, budget=len(all_flops(case.lines)), rules=rules)
    History(strategy=rounds).advance(case.outcomes, None)
    return rounds.looks


def cost_of(case: Case, rules: Rules = RULES) -> Cost:
    """Return what a verdict on one sweep costs."""
    flops = all_flops(case.lines)
    total = sum(flops.values())
    whole = doubts([line.grid(case.outcomes, flops) for line in case.lines], rules)
    of_grid = tuple(doubt.verdict for doubt in whole)
    looks = play(case, rules)
    asked, path = 0.0, []
    for look in looks:
        path += [(asked / total, one.doubt.size) for one in look.lines if one.line is case.lines[0]]
        asked += sum(flops[trial.id] for trial in look.trials)
    found = {one.line: one for one in looks[-1].lines}
    last = [found.get(line) for line in case.lines]
    of_search = tuple(None if one is None else one.doubt.verdict if one.decided else "undecided" for one in last)
    findings = (whole[0].finding, None if last[0] is None else last[0].doubt.finding)
    wrong = [
        _is_wrong(verdict, case.truly_transfers(finding)) if finding else None
        for verdict, finding in zip((of_grid[0], of_search[0]), findings, strict=True)
    ]
    return Cost(
        truly_transfers=case.truly_transfers(whole[0].finding),
        name=case.name,
        seed=case.seed,
        of_grid=of_grid,
        of_search=of_search,
        share=asked / total,
        num_looks=len(path),
        path=tuple(path),
        grid_is_wrong=wrong[0],
        search_is_wrong=wrong[1],
    )


def _is_wrong(verdict: Verdict | None, truly_transfers: bool | None) -> bool | None:
    return None if truly_transfers is None else verdict == ("drifts" if truly_transfers else "transfers")


def row_of(costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the numbers that the table shows. A share of nothing is None."""
    decided, rest = ([cost for cost in costs if cost.decided is said] for said in (True, False))
    controls = [cost for cost in costs if cost.of_search[1] is not None and cost.of_grid[1] != "undecided"]
    known = [cost for cost in costs if cost.truly_transfers is not None]
    out: dict[str, Any] = {"sweeps": len(costs), "decided_by_grid": len(decided)}
    out["same_verdict"] = _share([cost.same for cost in decided])
    out["other_verdict"] = _share([not cost.same and cost.of_search[0] != "undecided" for cost in decided])
    out["same_control"] = _share([cost.of_search[1] == cost.of_grid[1] for cost in controls])
    out["decided_by_search"] = sum(cost.of_search[0] not in (None, "undecided") for cost in costs)
    for name, found in (("decided", decided), ("undecided", rest)):
        shares = [cost.share for cost in found]
        for at, quantile in (("median", 0.5), ("p90", 0.9), ("largest", 1.0)):
            out[f"{name}_{at}"] = round(float(np.quantile(shares, quantile)), 4) if shares else None
    for name, truly in (("false_transfers", False), ("false_drifts", True)):
        of_truth = [cost for cost in known if cost.truly_transfers is truly]
        out[f"{name}_grid"] = _share([bool(cost.grid_is_wrong) for cost in of_truth])
        out[f"{name}_search"] = _share([bool(cost.search_is_wrong) for cost in of_truth])
    out["looks"] = round(float(np.mean([cost.num_looks for cost in costs])), 2)
    return out


def _share(found: Sequence[bool]) -> float | None:
    return round(sum(found) / len(found), 4) if found else None


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
    start, given = HPs(lr=2.0 ** world.x[0]), tuple(2.0**x for x in world.x)
    best: float | None = None
    lines = [(arm, shape) for shape in range(world.num_shapes) for arm in range(len(arms) if shape else 1)]
    for arm, shape in lines:
        played = refine(Line(hp="lr", start=start, given=given, known={}), RefineSettings())
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
        x_K = sorted({done.x for done in own})
        losses = [
            [arm.loss(shape, x, s) if Done(0, shape, x, s) in own else math.nan for s in range(world.seeds)]
            for x in x_K
        ]
        rows.append(shape_row("width", 32.0 * 2.0**shape, shape == 0, "world", [2.0**x for x in x_K], losses))
    return LossGrid(rows=tuple(rows))


def mean_paths(paths: Sequence[Sequence[Point]], shares: Sequence[float]) -> tuple[Point, ...]:
    """Return the mean doubt at each share of the grid's FLOPs. A path stays where it ended."""

    def at(path: Sequence[Point], share: float) -> float:
        return next((doubt for spent, doubt in reversed(path) if spent <= share + 1e-9), MOST)

    return tuple((share, float(np.mean([at(path, share) for path in paths]))) for share in shares)


def three_paths(world: World, case: Case, verdict: Sequence[Point], rules: Rules) -> dict[str, list[Point]]:
    """Return the path of each search on one sweep. That of the verdict search is known."""
    orders = {"grid": grid_order(world, len(case.arms)), "refine": refine_order(world, case.arms)}
    paths = {name: path_of(world, case.arms, list(order), rules) for name, order in orders.items()}
    return {**paths, "verdict": list(verdict)}
