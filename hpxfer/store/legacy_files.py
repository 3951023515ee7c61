"""Legacy files: the files of a folder that may hold legacy ids, and today's ids of their trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from hpxfer.store import parquet
from hpxfer.store.legacy import IDS_SINCE, Rows, renamed, todays_ids
from hpxfer.store.parts import Part
from hpxfer.store.schema import CURVES, TRIALS

FileState = tuple[int, int, int]  # inode, size and time of change


def file_state(path: Path) -> FileState | None:
    """Return values that change whenever the file changes, or None if they cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class LegacyFiles:
    """Tells old files from today's and translates their ids. It reads a file once per state of the file."""

    def __init__(self) -> None:
        self._versions: dict[Path, tuple[FileState | None, int]] = {}
        self._ids: dict[Path, tuple[FileState | None, dict[str, str]]] = {}

    def is_old(self, path: Path, schema: pa.Schema) -> bool:
        """Return whether a file may hold legacy ids. Raise Unreadable if it is not a complete file of `schema`."""
        state = file_state(path)
        if path not in self._versions or self._versions[path][0] != state:
            self._versions[path] = (state, parquet.check(path, schema))
        return self._versions[path][1] < IDS_SINCE

    def ids_of(self, path: Path) -> dict[str, str]:
        """Return legacy id -> today's id of the rows of an old trials file that prove their id."""
        state = file_state(path)
        if path not in self._ids or self._ids[path][0] != state:
            self._ids[path] = (state, todays_ids(parquet.table(path, TRIALS)))
        return self._ids[path][1]

    def ids(self, parts: Iterable[Part]) -> dict[str, str]:
        """Return legacy id -> today's id of all old trials files that can be read."""
        out: dict[str, str] = {}
        for part in parts:
            with suppress(parquet.Unreadable):
                if part.trials is not None and self.is_old(part.trials, TRIALS):
                    out.update(self.ids_of(part.trials))
        return out

    def unproven(self, parts: Iterable[Part]) -> list[str]:
        """Return the ids in old trials files that cannot be translated."""
        out: list[str] = []
        for part in parts:
            with suppress(parquet.Unreadable):
                if part.trials is not None and self.is_old(part.trials, TRIALS):
                    ids, rows = self.ids_of(part.trials), parquet.table(part.trials, TRIALS)
                    out += [trial_id for trial_id in rows["trial_id"].to_pylist() if trial_id not in ids]
        return out

    def trials(self, path: Path, rows: pa.Table) -> pa.Table:
        """Return the rows of a trials file with today's ids."""
        return renamed(rows, self.ids_of(path)) if self.is_old(path, TRIALS) else rows

    def curves(self, path: Path, rows: Rows, ids: Mapping[str, str]) -> Rows:
        """Return rows of a curves file with today's ids, given the translated ids of the folder.

        The trials of an old curves file may stand in any old part.
        """
        return renamed(rows, ids) if self.is_old(path, CURVES) else rows
