"""Output: tables that text, HTML and JSON print alike, rows as aligned columns, times as text, strict JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


def aligned(rows: Sequence[Sequence[str]], *, right_from: int | None = None) -> list[str]:
    """Return one line per row, with columns two spaces apart. Columns from `right_from` on are aligned to the right."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    num_left = len(widths) if right_from is None else right_from
    return [
        "  ".join(
            cell.ljust(width) if at < num_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def spell_time(seconds: float) -> str:
    """Return a time as text, e.g. `45 s`, `12 min` or `3.5 h`."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def json_ready(value: Any) -> Any:
    """Return data as strict JSON has it: lists for tuples, and None for numbers that are not finite."""
    match value:
        case Mapping():
            return {key: json_ready(part) for key, part in value.items()}
        case list() | tuple():
            return [json_ready(part) for part in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


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

    def lines(self) -> list[str]:
        """Return the names of the columns and the rows as aligned lines."""
        cells = [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        return aligned([[column.name for column in self.columns], *cells])

    def to_text(self) -> str:
        """Return the title, the note and aligned columns as plain text. Without a title they are not indented."""
        if not self.title:
            return "\n".join(self.lines())
        lines = [f"  {line}" for line in self.lines()]
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
