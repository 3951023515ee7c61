"""Speeds: the rows that a benchmark measured, and the JSON lines that keep them. The module needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_text

Kind = Literal["cpu", "cuda"]
# Raise it when the rows change their meaning. Lines of another version stay in the file as history, and are not read.
RECORD_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number. `numbers` are what it was computed from, by name, with the unit at its end."""

    key: str  # a key of `goals.GOALS`, or the row's own
    what: str
    value: float
    unit: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one benchmark on one kind of device."""

    name: str  # kernels | trainer | sweep
    device: Kind
    date: str  # UTC, ISO 8601
    command: str
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]

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
    path = folder / f"{record.name}.jsonl"
    _append(path, json.dumps(record.to_dict(), allow_nan=False) + "\n")
    return path


def require_writable(name: str, folder: Path) -> None:
    """Raise HpxferError if a record of this benchmark could not be appended. Call it before minutes of measuring."""
    _append(folder / f"{name}.jsonl", "")


def _append(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise HpxferError(f"{path.parent}: cannot be written: {error.strerror}; choose another --output") from None


def latest(folder: Path, name: str, device: Kind) -> Record | None:
    """Return the last record of a benchmark on this kind of device, or None if there is none."""
    return next(iter(_records(folder / f"{name}.jsonl", device)[::-1]), None)


def _records(path: Path, device: Kind) -> list[Record]:
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            data = json.loads(line)
            if data.pop("version", None) == RECORD_VERSION and data["device"] == device:
                found.append(Record(**{**data, "rows": tuple(Row(**row) for row in data["rows"])}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HpxferError(f"{path}:{number}: must be a benchmark record, got {error}; remove the line") from None
    return found
