"""Tables as data: what HTML, Markdown and JSON write, each in its own way. A cell is text, a number or None."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

Cell = str | float | int | None
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's heading and how its numbers are written."""

    name: str
    form: str = "{:.4g}"

    def text(self, cell: Cell) -> str:
        """Return a cell as it is read."""
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
    """A table with its title; `note` says what a reader must know of it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def numeric(self, place: int) -> bool:
        """Return whether a column holds numbers and nothing else."""
        return self._numeric[place]

    @cached_property
    def _numeric(self) -> tuple[bool, ...]:
        cells = [[row[place] for row in self.rows if row[place] is not None] for place in range(len(self.columns))]
        return tuple(bool(column) and all(isinstance(cell, int | float) for cell in column) for column in cells)

    def told(self) -> Table:
        """Return the table without the columns in which every cell is None."""
        kept = [place for place in range(len(self.columns)) if any(row[place] is not None for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in kept),
            rows=tuple(tuple(row[place] for place in kept) for row in self.rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: a mapping a row."""
        names = [column.name for column in self.columns]
        rows = [{name: _json(cell) for name, cell in zip(names, row, strict=True)} for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}


def table_of(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> Table:
    """Return a table of mappings; columns are the keys that hold a scalar in any of them, in the order first seen."""
    names = list(dict.fromkeys(key for row in rows for key, cell in row.items() if _is_cell(cell)))
    return Table(
        title=title,
        columns=tuple(Column(name=name.replace("_", " ")) for name in names),
        rows=tuple(tuple(_cell(row.get(name)) for name in names) for row in rows),
        note=note,
    )


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _cell(value: Any) -> Cell:
    return value if isinstance(value, str | int | float) else None


def _json(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
