"""The error rates as Markdown: every method over each group of worlds, and the worlds, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from docs_markdown import table
from scipy import stats
from world_list import TODAY

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
Rates = Mapping[str, float | None]


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
        f"{entry['sweeps']:,} sweeps per world, {entry['date']}, hpxfer {entry['hpxfer']}{_note(entry)}: "
        f"`{entry['command']}`.",
    ]
    growth = None if before is None else width_growth(entry, before)
    if before is not None and growth is not None:
        worlds = f"In the parabola worlds with 5 widths the median interval of an optimum is {abs(growth):.0%}"
        than = "wider" if growth >= 0 else "narrower"
        parts.append(f"{worlds} {than} than in the run of {before['date']}{_note(before)}.")
    return "\n\n".join(parts)


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
