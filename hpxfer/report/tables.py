"""Tables as data, which HTML, Markdown and JSON write each in its own way. A cell is text, a number or None."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from hpxfer.analysis import Analysis, Statistic
from hpxfer.analysis.statistics import STATISTICS
from hpxfer.figures.text import listed
from hpxfer.host.output import aligned, json_ready
from hpxfer.verdict.loss_grid import NATS

Cell = str | float | int | None
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Column:
    """The heading of a column, and the format of its numbers. A narrow screen keeps a column that is `kept` in view."""

    name: str
    form: str = "{:.4g}"
    kept: bool = False

    def text(self, cell: Cell) -> str:
        """Return a cell as text."""
        match cell:
            case None:
                return NOTHING
            case bool():
                return "yes" if cell else "no"
            case int():
                return str(cell)
            case float():
                return self.form.format(cell) if math.isfinite(cell) else NOTHING
            case _:
                return cell


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its title. `note` says what a reader must know about it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def numeric(self, index: int) -> bool:
        """Return whether a column holds numbers and nothing else."""
        return self._numeric[index]

    @cached_property
    def _numeric(self) -> tuple[bool, ...]:
        cells = [[row[i] for row in self.rows if row[i] is not None] for i in range(len(self.columns))]
        return tuple(bool(column) and all(isinstance(cell, int | float) for cell in column) for column in cells)

    def without_empty_columns(self) -> Table:
        """Return the table without the columns in which every cell is None."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )

    def to_text(self) -> str:
        """Return the title, the note and aligned columns as plain text."""
        cells = [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        lines = [f"  {line}" for line in aligned([[column.name for column in self.columns], *cells])]
        return "\n".join([self.title, *([f"  {self.note}"] if self.note else []), *lines]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, with one mapping per row."""
        names = [column.name for column in self.columns]
        rows = [json_ready(dict(zip(names, row, strict=True))) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}


def text_table(title: str, names: Iterable[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Return a table with columns of these names."""
    return Table(title=title, columns=tuple(Column(name=name) for name in names), rows=tuple(map(tuple, rows)))


def table_of(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> Table:
    """Return a table of mappings. Its columns are the keys that hold a scalar in any mapping, as first seen."""
    names = list(dict.fromkeys(key for row in rows for key, cell in row.items() if _is_cell(cell)))
    return Table(
        title=title,
        columns=tuple(Column(name=name.replace("_", " ")) for name in names),
        rows=tuple(tuple(cell if _is_cell(cell := row.get(name)) else None for name in names) for row in rows),
        note=note,
    )


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


REASONS = ("why_not", "why_no_hp", "why_no_loss", "why_no_optimum")
# The fields that tell the answers of a statistic apart.
LABELS = ("axis", "parameterization", "hp", "first", "second", "shape", "count")


def analysis_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Return one table per statistic that has answers."""
    out = []
    for statistic in STATISTICS.rows():
        answers = [answer for answer in analysis.found(statistic.name) if not getattr(answer, "why_not", None)]
        rows = [row for answer in answers for row in _rows(answer, statistic)]
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            kept = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
            cells = [{name: row.get(name) for name in kept} for row in rows]
            out.append(_in_unit(table_of(statistic.title, cells, statistic.note), analysis.judged.unit))
    return tuple(out)


def _in_unit(table: Table, unit: str) -> Table:
    """Return the table of a statistic with the unit of its losses for nats."""
    if unit == NATS.unit:
        return table
    names = [re.sub(r"\bnats\b", unit, column.name) for column in table.columns]
    note = re.sub(r"\bnats\b", unit, table.note)
    columns = tuple(replace(column, name=name) for column, name in zip(table.columns, names, strict=True))
    return replace(table, columns=columns, note=note)


def unknown(analysis: Analysis) -> tuple[str, ...]:
    """Return what is not known and why, one line per reason: `Loss collapse (width sp): one shape`."""
    found: dict[tuple[str, str], list[str]] = {}
    for statistic in STATISTICS.rows():
        for answer in analysis.found(statistic.name):
            for name in REASONS:
                if why := getattr(answer, name, None):
                    labels = [str(value) for label in LABELS if (value := getattr(answer, label, None))]
                    found.setdefault((statistic.title, why), []).append(" ".join(labels))
    return tuple(f"{title} ({listed(which)}): {why}" for (title, why), which in found.items())


def _rows(answer: Any, statistic: Statistic) -> Iterator[dict[str, Any]]:
    labels = {name: getattr(answer, name) for name in LABELS if hasattr(answer, name)}
    if statistic.parts is None:
        yield {**labels, **_scalars(answer)}
        return
    whole = {} if statistic.answer is None else {statistic.answer: getattr(answer, statistic.answer)}
    for part in getattr(answer, statistic.parts):
        yield {**labels, **whole, **_scalars(part)}


def _scalars(answer: Any) -> dict[str, Any]:
    values = {field.name: getattr(answer, field.name) for field in fields(answer) if field.name not in REASONS}
    return {
        name: _text(value)
        for name, value in values.items()
        if value is None or isinstance(value, str | int | float) or _fits_cell(value)
    }


def _fits_cell(value: Any) -> bool:
    """Return whether a tuple is short enough for one cell."""
    return isinstance(value, tuple) and 0 < len(value) <= 8 and all(isinstance(x, str | float | int) for x in value)


def _text(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return ", ".join(f"{part:.4g}" if isinstance(part, float) else str(part) for part in value)
