"""Measure this machine, keep each row as soon as it is measured, and return a table, for `hpxfer bench`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpxfer.bench.machine import bench_device, record
from hpxfer.bench.rates import rows as rows_on
from hpxfer.errors import HpxferError, shown
from hpxfer.host.json_lines import require_appendable
from hpxfer.host.output import aligned
from hpxfer.plan.speeds import SPEEDS, Record, Row, append, file_of, latest

Rows = Mapping[str, Callable[[], Row | None]]


def run_bench(device: str, output: Path, keys: Sequence[str] = ()) -> Record:
    """Measure the rows of this machine, or only the named ones, and return what is now known of it.

    Each row is in `output` before the next one is measured.
    """
    where = bench_device(device)
    rows = _chosen(rows_on(where), keys, where.type)
    require_appendable(file_of(SPEEDS, output))
    run = record(SPEEDS, f"hpxfer bench --device {where.type}", where, asked=keys, run=uuid.uuid4().hex[:12])
    for measure in rows.values():
        if (row := measure()) is not None:
            append(replace(run, rows=(row,)), output)
    return latest(output, SPEEDS, run.device) or run


def table_text(found: Record) -> str:
    """Return the rows for a terminal, under what they were measured on."""
    cells = [(row.key, row.what, f"{row.value:.3g} {row.unit}", _numbers(row)) for row in found.rows]
    return "\n".join([found.provenance(), *aligned([("row", "what", "measured", "of it"), *cells])])


def _numbers(row: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.numbers.items())


def _chosen(rows: Rows, keys: Sequence[str], device: str) -> Rows:
    """Return these rows, or all if none is named. Raise HpxferError for an unknown row."""
    for key in keys:
        if key not in rows:
            raise HpxferError(f"--row: {device} has no row {shown(key)}; legal: {', '.join(rows)}")
    return {key: rows[key] for key in keys or rows}
