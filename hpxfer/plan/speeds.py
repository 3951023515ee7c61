"""Speeds: the rows that a benchmark measured, and the JSON lines that keep them. The module needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hpxfer.errors import HpxferError
from hpxfer.host.json_lines import append_line, json_lines

Kind = Literal["cpu", "cuda"]
# Raise it when the rows change their meaning. Lines of another version stay in the file as history, and are not read.
# A line of version 2 holds a whole run, a line of version 3 a row of one.
WHOLE_RECORD, RECORD_VERSION = 2, 3
# The name of the records that `hpxfer bench` writes.
SPEEDS = "speeds"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number. `numbers` are what it was computed from, by name, with the unit at its end."""

    key: str
    what: str
    value: float
    unit: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Rows of one run of one benchmark on one kind of device. Records of one run differ in their rows alone."""

    name: str  # of the benchmark, e.g. SPEEDS
    device: Kind
    date: str  # UTC, ISO 8601
    command: str
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    run: str = ""  # the same in all records of a run; empty in a record that holds a whole run

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready data, with its version."""
        return {"version": RECORD_VERSION, **asdict(self)}

    def row(self, key: str) -> Row | None:
        """Return the row with this key, or None if the run did not measure it."""
        return next((row for row in self.rows if row.key == key), None)

    def provenance(self) -> str:
        """Return date, machine, versions and command as one line."""
        machine = [str(self.machine["gpu"])] if self.device == "cuda" else []
        machine += [f"{self.machine['cpu']}, {self.machine['cores']} cores, {self.machine['threads']} thread(s)"]
        versions = [f"{name} {version}" for name, version in self.versions.items()]
        return "; ".join((self.date, *machine, ", ".join(versions), f"`{self.command}`"))


def append(record: Record, folder: Path) -> Path:
    """Append the record as one JSON line to `folder`/<name>.jsonl, and return that file."""
    path = file_of(record.name, folder)
    append_line(path, record.to_dict())
    return path


def file_of(name: str, folder: Path) -> Path:
    """Return the file that keeps the records of a benchmark."""
    return folder / f"{name}.jsonl"


def latest(
    folder: Path, name: str, device: Kind, is_it: Callable[[Mapping[str, str | int]], bool] = lambda _: True
) -> Record | None:
    """Return what is known of a benchmark on this kind of device, or None if it never ran.

    This is the last run on a machine that `is_it` knows. A run may lack rows, because it was asked for one row or
    because it was killed. It then keeps the rows of the run before it, if that ran on the same machine with the same
    versions.
    """
    found: Record | None = None
    for record in _records(file_of(name, folder), device):
        if not is_it(record.machine):
            continue
        found = _joined(found, record) if found is not None and record.run else record
    return found


def _joined(before: Record, record: Record) -> Record:
    """Return both records as one if they are of one run, or of one machine with the same versions; else the later."""
    if (before.machine, before.versions) != (record.machine, record.versions):
        return record
    rows = {row.key: row for row in before.rows} | {row.key: row for row in record.rows}
    if before.run == record.run:
        return replace(before, rows=tuple(rows.values()))
    kept = len(rows) > len(record.rows)
    first = before.date.partition(" to ")[0]
    return replace(
        record,
        rows=tuple(rows.values()),
        date=f"{first} to {record.date}" if kept and first != record.date else record.date,
        command=record.command.partition(" --row ")[0] if kept else record.command,
    )


def _records(path: Path, device: Kind) -> list[Record]:
    if not path.exists():
        return []
    found = []
    for number, data in json_lines(path, "a benchmark record"):
        try:
            if data.pop("version", None) in (WHOLE_RECORD, RECORD_VERSION) and data["device"] == device:
                found.append(Record(**{**data, "rows": tuple(Row(**row) for row in data["rows"])}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HpxferError(f"{path}:{number}: must be a benchmark record, got {error}; remove the line") from None
    return found
