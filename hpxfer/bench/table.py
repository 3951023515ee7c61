"""Tables: the rows of a benchmark beside their goals, for a terminal and in Markdown. The module needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from hpxfer.bench.goals import goals
from hpxfer.host.output import aligned
from hpxfer.plan.speeds import Kind, Record, latest

BENCHES = ("trainer", "kernels", "moe", "sweep")
UNMEASURED = "unmeasured"
_HEADINGS = ("what", "measured", "goal", "elsewhere")
_TITLES = {
    ("trainer", "cpu"): "The trainer on a CPU",
    ("trainer", "cuda"): "The trainer on a GPU",
    ("kernels", "cpu"): "Kernels on a CPU",
    ("kernels", "cuda"): "Kernels on a GPU",
    ("moe", "cpu"): "A MoE layer on a CPU",
    ("moe", "cuda"): "A MoE layer on a GPU",
    ("sweep", "cpu"): "A sweep on a CPU",
    ("sweep", "cuda"): "A sweep on a GPU",
}


def table_text(bench: str, device: Kind, record: Record | None) -> str:
    """Return one table for a terminal: the rows with a goal, the other rows, then notes on what bounds them."""
    notes = [f"  {note}" for note in _notes(record)]
    title = f"{_TITLES[bench, device]}: {UNMEASURED if record is None else record.provenance()}"
    return "\n".join([title, *aligned([_HEADINGS, *_cells(bench, device, record)]), *notes])


def bench_markdown(folder: Path) -> str:
    """Return the tables of the latest run of every benchmark in `folder`. A benchmark that never ran is unmeasured."""
    parts = []
    for bench in BENCHES:
        for device in get_args(Kind):
            parts.append(_markdown(bench, device, latest(folder, bench, device)))
    return "\n\n".join(parts)


def _markdown(bench: str, device: Kind, record: Record | None) -> str:
    lines = [_line(cells) for cells in (_HEADINGS, ["---"] * len(_HEADINGS), *_cells(bench, device, record))]
    notes = [f"- {note}." for note in _notes(record)]
    provenance = (
        f"{UNMEASURED.capitalize()}; to measure: `hpxfer bench {bench} --device {device}`."
        if record is None
        else f"{record.provenance()}."
    )
    return "\n".join([f"**{_TITLES[bench, device]}**", "", *lines, "", *notes, *([""] if notes else []), provenance])


def _cells(bench: str, device: Kind, record: Record | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of every goal of a table, then those of the measured rows that have no goal."""
    rows = {} if record is None else {row.key: row for row in record.rows}
    for goal in goals(bench, device):
        row = rows.pop(goal.key, None)
        aim = "" if goal.goal is None else _value(goal.goal, goal.unit)
        if goal.at_most is not None:
            aim = f"at most {_value(goal.at_most, goal.unit)}"
        yield goal.what, UNMEASURED if row is None else _value(row.value, row.unit), aim, goal.reference
    for row in rows.values():
        yield row.what, _value(row.value, row.unit), "", ""


def _notes(record: Record | None) -> Iterator[str]:
    """Yield the note of each row, or, if it has none, the numbers that it was computed from."""
    for row in () if record is None else record.rows:
        numbers = (f"{name.replace('_', ' ')} {_number(value)}" for name, value in row.numbers.items())
        if detail := row.note or ", ".join(numbers):
            yield f"{row.what}: {detail}"


def _value(value: float, unit: str) -> str:
    return f"{_number(value)}{unit}" if unit.startswith("x") else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Return three digits, without an exponent below a million."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
