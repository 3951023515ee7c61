"""The tables of what the statistics of a sweep found, and why the rest is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from hpxfer.analysis import Analysis, Statistic
from hpxfer.analysis.statistics import STATISTICS
from hpxfer.figures.text import listed
from hpxfer.host import Table, table_of
from hpxfer.verdict import NATS

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
