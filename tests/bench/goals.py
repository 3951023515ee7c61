"""Goals: the rows of each table with what they should reach and what other codes reach, from goals.yaml."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpxfer.bench.clock import Times, median
from hpxfer.bench.rates import CPU_WIDTHS
from hpxfer.host.output import aligned
from hpxfer.plan.hardware import Record, Row, latest

UNMEASURED = "unmeasured"
HEADINGS = ("what", "measured", "goal", "elsewhere")


@dataclass(frozen=True)
class Goal:
    """One row of a table: what is measured, its goal, which is a lower bound, and what other codes reach."""

    key: str
    what: str
    unit: str
    goal: float | None = None
    reference: str = ""
    at_most: bool = False  # the goal is an upper bound


# A token's active width stays 8 x 128 = 1024 at width 256. Along capacity the experts become more. Along granularity
# they become more and smaller, and a token uses more of them: key -> (axis, experts, active).
MOE_SIZES = {f"cpu-capacity-{count}": ("capacity", count, 8) for count in (8, 16, 32, 64, 128)} | {
    f"cpu-granularity-{active}": ("granularity", 8 * active, active) for active in (2, 4, 8, 16, 32)
}
_MOE_WHAT = "{}: E{}A{} h{} over a dense SwiGLU FFN of width 1024, forward and backward"


def _goals(key: str, what: str, unit: str, *of: Any) -> list[Goal]:
    """Return the goals of a row of goals.yaml."""
    if "{w}" not in key:
        return [Goal(key, what, unit, *of)]
    every = [[column[place] for column in of] for place in range(len(CPU_WIDTHS))]
    return [Goal(key.format(w=w), what.format(w=w), unit, *own) for w, own in zip(CPU_WIDTHS, every, strict=True)]


TABLES: dict[str, tuple[str, list[Goal]]] = {
    name: (table["title"], [goal for row in table["rows"] for goal in _goals(*row)])
    for name, table in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}
TABLES["moe"][1].extend(
    Goal(key, _MOE_WHAT.format(axis, n, a, 1024 // a), "x") for key, (axis, n, a) in MOE_SIZES.items()
)
_, GPU = TABLES.pop("gpu")
_GOALS = {goal.key: goal for goals in (*(rows for _, rows in TABLES.values()), GPU) for goal in goals}


def ms_of(times: Times, *names: str) -> dict[str, float]:
    """Return NAME_ms -> the median milliseconds of these jobs, or of all."""
    return {f"{name}_ms": 1000 * median(times, name) for name in names or times}


def measured(key: str, value: float, *, note: str = "", numbers: Mapping[str, float] | None = None) -> Row:
    """Return the measured row of the goal with this key."""
    goal = _GOALS[key]
    return Row(key=key, what=goal.what, value=value, unit=goal.unit, note=note, numbers=numbers or {})


def table_text(bench: str, record: Record) -> str:
    """Return one table for a terminal, then notes on what bounds its rows."""
    title, goals = TABLES[bench]
    cells = aligned([HEADINGS, *_cells(goals, record.rows)])
    return "\n".join([f"{title}: {record.provenance()}", *cells, *(f"  {note}" for note in _notes(record.rows))])


def bench_markdown(folder: Path) -> str:
    """Return the tables of the latest run of every benchmark in `folder`, that of a GPU at the end."""
    parts = []
    for bench, (title, goals) in TABLES.items():
        record = latest(folder, bench, "cpu")
        rows = () if record is None else record.rows
        notes = "".join(f"- {note}.\n" for note in _notes(rows))
        by = f"{record.provenance()}." if record else f"{UNMEASURED}: `python tests/bench/run_bench.py {bench}`."
        parts += [_markdown(title, _cells(goals, rows)), *([notes.rstrip()] if notes else []), by]
    path = folder / "accept.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    gpus = sorted({str(line["machine"]["gpu"]) for line in lines})
    found = [measured(key, value) for key, value in goal_values(lines).items()]
    gpu = f"The last of {', '.join(gpus) or 'no GPU'}; the others: `python tests/bench/accept.py`."
    return "\n\n".join([*parts, _markdown("On a GPU", _cells(GPU, found)), gpu])


def goal_values(numbers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return goal -> value of the lines of an acceptance. The last number of a key counts. Ratios are of rates from
    processes of their own.
    """
    last = {line["key"]: line for line in numbers if isinstance(line.get("key"), str)}
    found = {key: line["value"] for key, line in last.items() if key in _GOALS and finite(line.get("value"))}

    def rate(key: str, of: str = "tokens_per_s") -> float:
        value = last.get(key, {}).get(of)
        return float(value) if finite(value) and value > 0 else math.nan

    made = {
        "base-32k": rate("r-base-32k") / 1e6,
        "base-64k": rate("r-base-64k") / 1e6,
        "twin-32k": rate("r-base-32k") / rate("r-base-32k-dense"),
        "strict": rate("r-strict-32k") / rate("r-base-32k"),
        "large-mfu": rate("r-large", "tflops") / rate("peak", "tflops"),
        "large-twin": rate("r-large") / rate("r-large-dense"),
        "stack-64": rate("r-stack-64") / rate("r-alone"),
    }
    return found | {key: value for key, value in made.items() if math.isfinite(value)}


def finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def gpu_rows(numbers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of the goals that the numbers of an acceptance reach to."""
    found = goal_values(numbers)
    rows = [measured(key, value) for key, value in found.items()]
    return list(aligned([HEADINGS, *_cells([goal for goal in GPU if goal.key in found], rows)]))


def _markdown(title: str, cells: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *cells)]
    return "\n".join([f"**{title}**", "", *lines])


def _cells(goals: Sequence[Goal], found: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of every goal of a table, then those of the measured rows that have no goal."""
    rows = {row.key: row for row in found}
    for goal in goals:
        row = rows.pop(goal.key, None)
        aim = "" if goal.goal is None else ("at most " if goal.at_most else "") + _value(goal.goal, goal.unit)
        yield goal.what, UNMEASURED if row is None else _value(row.value, row.unit), aim, goal.reference
    for row in rows.values():
        yield row.what, _value(row.value, row.unit), "", ""


def _notes(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the note of each row, or, if it has none, the numbers that it was computed from."""
    for row in rows:
        numbers = (f"{name.replace('_', ' ')} {_number(value)}" for name, value in row.numbers.items())
        if detail := row.note or ", ".join(numbers):
            yield f"{row.what}: {detail}"


def _value(value: float, unit: str) -> str:
    return f"{_number(value)}{'' if unit.startswith('x') else ' '}{unit}"


def _number(value: float) -> str:
    """Return three digits, without an exponent below a million."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
