"""How often the verdict is wrong, measured on worlds whose truth is known: `python tests/tools/error_rates.py`.

Every sweep goes through the analysis of `hpxfer report`, and through the methods of `comparators` unless `--no-others`.
Their answers are held against the truth of the noise-free losses (`world_truth`). The worst worlds come first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from comparators import OTHERS
from error_rates_tables import OURS, badness, error_rates_tables
from foreign_worlds import World
from verdict_counts import Method, VerdictCounts, measure_all, report
from world_list import TODAY, WORLDS, random_worlds

import hpxfer

SWEEPS = 200
CHUNK = 20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The counts of every method over the sweeps of one world."""

    world: World
    counts: dict[str, VerdictCounts]

    def as_json(self) -> dict[str, Any]:
        methods = {name: counts.as_json() for name, counts in self.counts.items()}
        return {"name": self.world.name, "group": self.world.group, "methods": methods}


def measured(
    worlds: Sequence[World], sweeps: int, methods: dict[str, Method], workers: int, draw: int
) -> Iterator[Measured]:
    """Yield the counts of each world. The number of workers does not matter."""
    jobs = [(world, range(start, min(start + CHUNK, sweeps))) for world in worlds for start in range(0, sweeps, CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(
            measure_all, *zip(*((world, seeds, methods, draw) for world, seeds in jobs), strict=True), chunksize=1
        )
        totals = dict.fromkeys(methods, VerdictCounts())
        for (world, seeds), counts in zip(jobs, found, strict=True):
            totals = {name: totals[name] + counts[name] for name in methods}
            if seeds.stop == sweeps:
                yield Measured(world=world, counts=totals)
                totals = dict.fromkeys(methods, VerdictCounts())


def pooled(rows: Sequence[Measured], methods: Sequence[str]) -> dict[str, Any]:
    """Return counts and rates over several worlds, per method."""
    return {
        name: sum((row.counts[name] for row in rows), VerdictCounts()).as_json() | {"worlds": len(rows)}
        for name in methods
    }


def entry_of(rows: Sequence[Measured], methods: Sequence[str]) -> dict[str, Any]:
    """Return the worlds, the worst first, and the rates over each group and over all that are not today's parabolas."""
    groups = list(dict.fromkeys(row.world.group for row in rows))
    over = {"all others": [row for row in rows if row.world.group != TODAY]}
    over |= {group: [row for row in rows if row.world.group == group] for group in groups}
    return {
        "rows": sorted((row.as_json() for row in rows), key=lambda row: -badness(row["methods"][OURS])),
        "groups": {name: pooled(found, methods) for name, found in over.items() if found},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the error rates and print them as Markdown. With a folder, append them to its error_rates.jsonl."""
    parser = argparse.ArgumentParser(prog="python tests/tools/error_rates.py", description=main.__doc__)
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help="sweeps per world")
    parser.add_argument("--worlds", default="", help="measure the worlds whose group and name match this expression")
    parser.add_argument("--random", type=int, default=0, help="further worlds, crossed at random")
    parser.add_argument("--draw", type=int, default=0, help="another number draws other sweeps and other random worlds")
    parser.add_argument(
        "--no-others", action="store_true", help="leave out the methods that the report is compared with"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--output", type=Path, help="folder")
    parser.add_argument("--note", default="", help="what was measured, if it is not the code as it stands")
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # workers read it: on small arrays, threads only wait for each other
    methods: dict[str, Method] = {OURS: report} if given.no_others else {OURS: report, **OTHERS}
    every = (*WORLDS, *random_worlds(given.random, given.draw))
    worlds = [world for world in every if re.search(given.worlds, f"{world.group}: {world.name}")]
    start = time.monotonic()
    rows = list(measured(worlds, given.sweeps, methods, given.workers, given.draw))
    entry = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(
            ["python", "tests/tools/error_rates.py", *(sys.argv[1:] if arguments is None else arguments)]
        ),
        "note": given.note,
        "hpxfer": hpxfer.__version__,
        "versions": {"numpy": np.__version__, "scipy": scipy.__version__, "python": platform.python_version()},
        "sweeps": given.sweeps,
        "draw": given.draw,
        "wall_s": round(time.monotonic() - start, 1),
        **entry_of(rows, list(methods)),
    }
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        with (given.output / "error_rates.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
    sys.stdout.write(error_rates_tables(entry) + "\n")
    for row in rows:
        if row.counts[OURS].wrong:
            sys.stderr.write(f"{row.world.name}: wrong in sweeps {list(row.counts[OURS].wrong)}\n")


if __name__ == "__main__":
    main()
