"""The file of a table of block sizes: which entries were measured, on what machine, and with which versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_text, write_files
from hpxfer.kernels.configs import TABLE_PATH, Config, table


@dataclass(frozen=True, kw_only=True)
class Written:
    """A table as its file holds it. `measured` says of each measured entry on what machine, and with which versions."""

    tables: Mapping[str, tuple[Config, ...]]
    measured: tuple[Mapping[str, Any], ...]
    note: str

    @classmethod
    def read(cls, path: Path) -> Written:
        """Return the table of a file, or the package's own if there is no file. Raise HpxferError for another file."""
        try:
            text = read_text(path if path.exists() else TABLE_PATH)
            data = json.loads(text)
            return cls(tables=table(text), measured=tuple(data["measured"]), note=data["note"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HpxferError(f"--out: {path}: must be a table of block sizes, got {error}; name a new file") from None

    def with_entry(self, arch: str, old: Config, new: Config, how: Mapping[str, Any]) -> Written:
        """Return the table with one entry replaced, which is now a measured one."""
        entries = tuple(new if entry == old else entry for entry in self.tables[arch])
        place = {"architecture": arch, "entry": how["entry"]}
        others = [row for row in self.measured if {name: row[name] for name in place} != place]
        return replace(self, tables={**self.tables, arch: entries}, measured=(*others, {**place, **how}))

    def write(self, path: Path) -> None:
        """Write the file at once, so that it is a whole table at any time."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: lambda file: file.write(self.text().encode())})
        except OSError as error:
            raise HpxferError(f"--out: {path}: cannot be written: {error.strerror}; name another file") from None

    def text(self) -> str:
        """Return the JSON, with one line per part of an entry."""
        lines = []
        for arch, configs in self.tables.items():
            entries = ",\n".join(map(_entry_text, configs))
            lines.append(f'  "{arch}": [\n{entries}\n  ]')
        measured = ",\n".join(f"  {json.dumps(dict(row))}" for row in self.measured)
        measured = f"\n{measured}\n " if measured else ""
        head = f'{{\n "measured": [{measured}],\n "note": {json.dumps(self.note)},'
        return f'{head}\n "architectures": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def _entry_text(config: Config) -> str:
    """Return an entry without the fields that stand at their default, as the table spells it."""
    fields = {name: _plain(value) for name, value in asdict(config).items() if (name, value) != ("products", "triton")}
    plain = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    parts = [f'    "{name}": {json.dumps(value)}' for name, value in fields.items() if isinstance(value, dict)]
    return "   {" + ",\n".join([json.dumps(plain)[1:-1], *parts]) + "}"


def _plain(value: Any) -> Any:
    return {name: part for name, part in value.items() if part is not None} if isinstance(value, dict) else value
