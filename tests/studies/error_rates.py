"""How often the verdict is wrong, measured on worlds whose truth is known: `python tests/studies/error_rates.py`.

Every sweep goes through the analysis of `hpxfer report`, and through the methods of `comparators` unless `--no-others`.
Their answers are held against the truth of the noise-free losses (`world_truth`). The worst worlds come first.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from comparators import OTHERS
from foreign_worlds import World
from record import head, keep, table
from scipy import stats
from verdict_counts import Method, VerdictCounts, measure_all, report
from world_list import TODAY, WORLDS, random_worlds

SWEEPS = 200
CHUNK = 20
OURS = "hpxfer"
# What a world must keep. A world's badness is the largest share of its allowance that a rate uses up.
FALSE, NOT_A_LINE, COVERED = 0.05, 0.05, 0.9
COVERAGES = ("optimum_coverage", "drift_coverage", "move_coverage")
HEADS = {
    "false_transfers": 'false "transfers"',
    "false_drifts": 'false "drifts"',
    "right_of_decided": "decided: right",
    "clear_decided": "clear: decided",
    "optimum_coverage": "covered: optimum",
    "drift_coverage": "covered: drift",
    "move_coverage": "covered: move",
    "bound_held": 'held: "at most ... lost"',
    "not_a_line": 'a line: "not a line"',
    "width_octaves": "width, octaves",
}
SUMMARY = ("worlds", "method", "wrong verdicts", *(HEADS[name] for name in ("false_transfers", "false_drifts")))
SUMMARY += tuple(HEADS[name] for name in ("clear_decided", "optimum_coverage"))
Rates = Mapping[str, float | None]


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


def badness(counts: Mapping[str, Any]) -> float:
    """Return how much of what a world allows its worst rate uses up. Over 1, a target is surely missed.

    Few sweeps of a world may truly drift, or truly transfer. A false rate is therefore its lower 97.5% bound.
    """
    rates: Rates = counts["rates"]
    among = {"false_transfers": counts["sweeps"] - counts["truly_transfers"], "false_drifts": counts["truly_transfers"]}
    used = [_least(counts[name], number) / FALSE for name, number in among.items()]
    used += [rate / NOT_A_LINE] if (rate := rates["not_a_line"]) is not None else []
    used += [(1 - rate) / (1 - COVERED) for name in COVERAGES if (rate := rates[name]) is not None]
    return max(used)


def _least(wrong: int, among: int) -> float:
    return float(stats.beta.ppf(0.025, wrong, among - wrong + 1)) if wrong else 0.0


def width_growth(entry: dict[str, Any], before: dict[str, Any]) -> float | None:
    """Return by which share the median interval of an optimum grew since an earlier run.

    It is the median over the parabola worlds with 5 widths that both runs have; None without one.
    """
    now, then = (_widths(found) for found in (entry, before))
    ratios = [now[name] / then[name] for name in now if name in then]
    return float(np.median(ratios)) - 1 if ratios else None


def error_rates_tables(entry: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Return one run: a table with a row per group and method, and one with a row per world, the worst first."""
    groups = [
        (f"{name} ({counts['worlds']} worlds)", method, *_cells(counts["rates"]))
        for name, methods in entry["groups"].items()
        for method, counts in methods.items()
    ]
    others = [name for name in entry["rows"][0]["methods"] if name != OURS] if entry["rows"] else []
    heads = ["group", "world", *HEADS.values(), *(f"right: {name}" for name in others)]
    parts = [
        table(("worlds", "method", *HEADS.values()), groups),
        table(heads, [_world(row, others) for row in entry["rows"]]),
        _source(entry),
    ]
    growth = None if before is None else width_growth(entry, before)
    if before is not None and growth is not None:
        worlds = f"In the parabola worlds with 5 widths the median interval of an optimum is {abs(growth):.0%}"
        than = "wider" if growth >= 0 else "narrower"
        parts.append(f"{worlds} {than} than in the run of {before['date']}{_note(before)}.")
    return "\n\n".join(parts)


def error_summary(entry: dict[str, Any]) -> str:
    """Return one run in one table: all worlds by each method, and each group of worlds by hpxfer."""
    worlds = entry["rows"]
    parts = [("all worlds", name, worlds) for name in worlds[0]["methods"]]
    of_group = {group: [row for row in worlds if row["group"] == group] for group in entry["groups"]}
    parts += [(group, OURS, found) for group, found in of_group.items() if found]
    rows = [(f"{name} ({len(rows)})", method, *_summed(rows, method)) for name, method, rows in parts]
    return "\n\n".join([table(SUMMARY, rows), _source(entry)])


def _summed(rows: Sequence[Mapping[str, Any]], method: str) -> tuple[str, ...]:
    """Return the cells of `SUMMARY` over several worlds, whose counts add up."""

    def total(name: str) -> int:
        return sum(row["methods"][method][name] for row in rows)

    false_transfers, false_drifts, truly_transfers = map(total, ("false_transfers", "false_drifts", "truly_transfers"))
    return (
        f"{false_transfers + false_drifts:,} of {total('decided'):,}",
        f"{false_transfers:,} of {total('sweeps') - truly_transfers:,}",
        f"{false_drifts:,} of {truly_transfers:,}",
        *(
            _cell("", total(part) / total(whole) if total(whole) else None)
            for part, whole in (("clear_decided", "clear"), ("optima_covered", "optima"))
        ),
    )


def _source(entry: dict[str, Any]) -> str:
    """Return how a run was made."""
    made = f"{entry['date']}, hpxfer {entry['hpxfer']}{_note(entry)}"
    return f"{entry['sweeps']:,} sweeps per world, {made}: `{entry['command']}`."


def _widths(entry: dict[str, Any]) -> dict[str, float]:
    rows = [row for row in entry["rows"] if row["group"] == TODAY]
    return {row["name"]: width for row in rows if (width := row["methods"][OURS]["rates"]["width_octaves"])}


def _note(entry: dict[str, Any]) -> str:
    return f" ({entry['note']})" if entry.get("note") else ""


def _world(row: dict[str, Any], others: Sequence[str]) -> tuple[str, ...]:
    counts = row["methods"][OURS]
    truly_drift = counts["sweeps"] - counts["truly_transfers"]
    # How many sweeps a false rate rests on differs by world.
    wrong = (
        f"{counts['false_transfers']} of {truly_drift}" if truly_drift else "-",
        f"{counts['false_drifts']} of {counts['truly_transfers']}" if counts["truly_transfers"] else "-",
    )
    right = (_cell("", row["methods"][name]["rates"]["right_of_decided"]) for name in others)
    return (row["group"], row["name"], *wrong, *_cells(counts["rates"])[2:], *right)


def _cells(rates: Rates) -> list[str]:
    return [_cell(name, rates.get(name)) for name in HEADS]


def _cell(name: str, rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.2f}" if name == "width_octaves" else f"{100 * rate:.1f}%"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the error rates and print them as Markdown. With a folder, append them to its error_rates.jsonl."""
    parser = argparse.ArgumentParser(prog="python tests/studies/error_rates.py", description=main.__doc__)
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
        **head("error_rates", words, "numpy", "scipy"),
        "note": given.note,
        "sweeps": given.sweeps,
        "draw": given.draw,
        "wall_s": round(time.monotonic() - start, 1),
        **entry_of(rows, list(methods)),
    }
    keep(entry, given.output, "error_rates")
    sys.stdout.write(error_rates_tables(entry) + "\n")
    for row in rows:
        if row.counts[OURS].wrong:
            sys.stderr.write(f"{row.world.name}: wrong in sweeps {list(row.counts[OURS].wrong)}\n")


if __name__ == "__main__":
    main()
