"""Tables: the rows of a benchmark beside their goals, for a terminal and in Markdown. The module needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from hpxfer.bench.goals import Goal, goals
from hpxfer.host.output import aligned
from hpxfer.plan.speeds import Kind, Record, Row, latest

BENCHES = ("trainer", "kernels", "sweep")
UNMEASURED = "unmeasured"
_HEADINGS = ("what", "measured", "goal", "elsewhere")
_TITLES = {
    ("trainer", "cpu"): "The trainer on a CPU",
    ("trainer", "cuda"): "The trainer on a GPU",
    ("kernels", "cpu"): "Kernels on a CPU",
    ("kernels", "cuda"): "Kernels on a GPU",
    ("sweep", "cpu"): "A sweep on a CPU",
    ("sweep", "cuda"): "A sweep on a GPU",
}


def table_text(bench: str, device: Kind, record: Record | None) -> str:
    """Return one table for a terminal: the rows with a goal, the other rows, then notes on what bounds them."""
    found = {} if record is None else {row.key: row for row in record.rows}
    cells = [_HEADINGS, *(_cells(goal, found.get(goal.key)) for goal in goals(bench, device))]
    cells += [(row.what, _value(row.value, row.unit), "", "") for row in _without_goal(bench, device, record)]
    lines = aligned(cells)
    notes = [f"  {row.what}: {detail}" for row in found.values() if (detail := _detail(row))]
    title = f"{_TITLES[bench, device]}: {UNMEASURED if record is None else record.place()}"
    return "\n".join([title, *lines, *notes])


def bench_markdown(folder: Path) -> str:
    """Return the tables of the latest run of every benchmark in `folder`. A benchmark that never ran is unmeasured."""
    parts = []
    for bench in BENCHES:
        for device in get_args(Kind):
            parts.append(_markdown(bench, device, latest(folder, bench, device)))
    return "\n\n".join(parts)


def _markdown(bench: str, device: Kind, record: Record | None) -> str:
    found = {} if record is None else {row.key: row for row in record.rows}
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(_cells(goal, found.get(goal.key))) for goal in goals(bench, device)]
    lines += [_line((row.what, _value(row.value, row.unit), "", "")) for row in _without_goal(bench, device, record)]
    notes = [f"- {row.what}: {detail}." for row in found.values() if (detail := _detail(row))]
    place = (
        f"{UNMEASURED.capitalize()}; to measure: `hpxfer bench {bench} --device {device}`."
        if record is None
        else f"{record.place()}."
    )
    return "\n".join([f"**{_TITLES[bench, device]}**", "", *lines, "", *notes, *([""] if notes else []), place])


def _cells(goal: Goal, row: Row | None) -> tuple[str, str, str, str]:
    measured = UNMEASURED if row is None else _value(row.value, row.unit)
    aim = "" if goal.goal is None else _value(goal.goal, goal.unit)
    if goal.at_most is not None:
        aim = f"at most {_value(goal.at_most, goal.unit)}"
    return goal.what, measured, aim, goal.reference


def _without_goal(bench: str, device: Kind, record: Record | None) -> Iterable[Row]:
    known = {goal.key for goal in goals(bench, device)}
    return [] if record is None else [row for row in record.rows if row.key not in known]


def _detail(row: Row) -> str:
    """Return the row's note, or, if it has none, the numbers that it was computed from."""
    return row.note or ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in row.numbers.items())


def _value(value: float, unit: str) -> str:
    return f"{_number(value)}{unit}" if unit.startswith("x") else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Return three digits, without an exponent below a million."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
