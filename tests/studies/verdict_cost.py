"""What a decided verdict costs: a verdict search against the whole grid: `python tests/studies/verdict_cost.py`.

Each sweep is judged twice: from its whole grid, and by a search that is given the outcomes of the trials it asks for.
The table says how often the search says the same, and at which share of the grid's FLOPs, both arms counted. A search
that finds a drift needs no control, so it spends nothing on it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from foreign_worlds import World
from record import head, keep, table
from verdict_cost_cases import PUBLISHED, published_cases, world_case
from verdict_cost_measure import RULES, Cost, Point, cost_of, mean_paths, row_of, three_paths
from world_list import SIX, WORLDS, random_worlds

from hpxfer.figures.chart import draw
from hpxfer.figures.searches import doubt_block
from hpxfer.figures.style import write_svg
from hpxfer.search.verdict_lines import DoubtLook

RANDOM = "worlds drawn at random"
SHARES = tuple(round(0.05 * step, 2) for step in range(1, 21))
COLUMNS = {
    "sweeps": "sweeps",
    "decided_by_grid": "the grid decides",
    "same_verdict": "same verdict",
    "same_control": "same on the control",
    "decided_median": "FLOPs, median",
    "decided_p90": "FLOPs, 90%",
    "undecided_largest": "FLOPs where the grid does not decide, largest",
    "false_transfers_grid": "false transfers, grid",
    "false_transfers_search": "false transfers, search",
    "false_drifts_grid": "false drifts, grid",
    "false_drifts_search": "false drifts, search",
    "looks": "looks",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The sweeps of one world, or of one published sweep, that one process measures."""

    group: str
    name: str
    world: World | None = None
    seeds: range = range(0)
    draw: int = 0
    paths: bool = False  # whether the doubt is followed for grid and refine too

    def run(self) -> list[Cost]:
        """Return the cost of each sweep."""
        if self.world is None:
            return [cost_of(case) for case in published_cases(self.name)]
        found = []
        for seed in self.seeds:
            case = world_case(self.world, seed, self.draw)
            cost = cost_of(case)
            if self.paths:
                cost.paths.update(three_paths(self.world, case, cost.path, RULES))
            found.append(cost)
        return found


def jobs(sweeps: int, draw: int, worlds: str, num_random: int, published: bool, paths: bool) -> Iterator[Job]:
    """Yield what is measured: the usual sweeps of 6 values and 3 seeds, worlds drawn at random, published results."""
    chosen = [(SIX, world) for world in WORLDS if world.group == SIX]
    chosen += [(RANDOM, world) for world in random_worlds(num_random, draw)]
    for group, world in chosen:
        if re.search(worlds, world.name) and world.seeds > 1:
            followed = paths and group == SIX
            yield Job(group=group, name=world.name, world=world, seeds=range(sweeps), draw=draw, paths=followed)
    for name in PUBLISHED if published else ():
        yield Job(group=f"published {name}", name=name)


def text_of(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table. FLOPs are shares of those of the whole grid, both arms counted."""

    def spelled(name: str, value: float | None) -> str:
        return "" if value is None else str(value) if name in ("sweeps", "decided_by_grid", "looks") else f"{value:.1%}"

    body = [[name, *(spelled(key, row[key]) for key in COLUMNS)] for name, row in rows.items()]
    return table(["sweeps of", *COLUMNS.values()], body)


def draw_paths(costs: Sequence[Cost], path: Path) -> None:
    """Draw the mean doubt against FLOPs of grid, refine and verdict."""
    found = [cost.paths for cost in costs if cost.paths]
    panel = f"mean over {len(found)} planted sweeps of 6 values and 3 seeds"
    paths = {name: mean_paths([paths[name] for paths in found], SHARES) for name in found[0]}
    looks = [
        DoubtLook(axis=panel, parameterization=name, share_of_grid_flops=share, doubt=doubt)
        for name, found_path in paths.items()
        for share, doubt in found_path
    ]
    info = doubt_block(looks, RULES.error)
    if isinstance(info, str):
        raise SystemExit(info)
    reached = [f"{name} {_reached(path)}" for name, path in paths.items()]
    title = f"FLOPs until the mean doubt is {RULES.error:g}: {', '.join(reached)}"
    with path.open("wb") as file:
        write_svg(draw(replace(info, title=title)), "verdict cost", file)


def _reached(points: Sequence[Point]) -> str:
    share = next((share for share, doubt in points if doubt <= RULES.error), None)
    return "not reached" if share is None else f"{share:.0%} of the grid's"


def main(arguments: Sequence[str]) -> None:
    """Measure, print the tables, and append them to a file with date, command and versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=40, help="of each planted world")
    parser.add_argument("--draw", type=int, default=0, help="other draws are other sweeps")
    parser.add_argument("--worlds", default="", help="a pattern that the names of planted worlds must have")
    parser.add_argument("--random", type=int, default=20, help="worlds drawn at random")
    parser.add_argument("--no-published", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--figure", type=Path, help="an SVG of doubt against FLOPs")
    parser.add_argument("--output", type=Path, help="such as results/bench/verdict_cost.jsonl")
    given = parser.parse_args(arguments)
    started, published = time.monotonic(), not given.no_published
    todo = list(jobs(given.sweeps, given.draw, given.worlds, given.random, published, given.figure is not None))
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(Job.run, todo))
    groups: dict[str, list[Cost]] = {}
    for job, costs in zip(todo, found, strict=True):
        groups.setdefault(job.group, []).extend(costs)
    rows = {name: row_of(costs) for name, costs in groups.items()}
    worlds = {job.name: row_of(costs) for job, costs in zip(todo, found, strict=True) if job.world is not None}
    for part in (rows, worlds):
        print(f"{text_of(part)}\n")  # noqa: T201
    for cost in (cost for costs in groups.values() for cost in costs if cost.decided and not cost.same):
        print(f"{cost.name}, seed {cost.seed}: grid {cost.of_grid[0]}, search {cost.of_search[0]}")  # noqa: T201
    if given.figure is not None:
        draw_paths([cost for costs in groups.values() for cost in costs], given.figure)
    entry = {"seconds": round(time.monotonic() - started), "error": RULES.error, "rows": rows, "worlds": worlds}
    folder = None if given.output is None else given.output.parent
    keep({**head("verdict_cost", arguments, "numpy", "scipy"), **entry}, folder, "verdict_cost")


if __name__ == "__main__":
    main(sys.argv[1:])
