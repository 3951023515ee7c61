"""Store: the results folder of one sweep. The driver writes it, and a run is resumed from it alone.

    sweep.yaml                                      the sweep as run
    trials-000001.parquet, curves-000001.parquet    one pair per write
    trials.parquet, curves.parquet                  what `compact` makes of the pairs

A crash at any point loses no result. Every file is complete or absent, and of rows that are stored twice one is read.
A file that cannot be read, or that hpxfer did not write, is named in `problems` and passed over. It stays in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from hpxfer.errors import HpxferError
from hpxfer.host import locked, path_problem, prove_writable, reason, write_files
from hpxfer.spec import SweepSpec
from hpxfer.store import parquet
from hpxfer.store.parquet import CurvesOnDisk, Part, list_parts, next_number, part_path
from hpxfer.store.rows import (
    STOPPED,
    Pair,
    best_rows,
    curves_table,
    done_rows,
    joined,
    of_trials,
    points_of_trials,
    trials_table,
)
from hpxfer.store.schema import CURVES, TRIALS
from hpxfer.store.sweep_file import save_sweep

T = TypeVar("T")
_FIX, _LEFT = "choose another folder with --results", "passed over and left where it is"


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A part, those of its rows that count for their trial, and its curves if they can be read."""

    part: Part
    trials: pa.Table
    curves: Iterable[pa.RecordBatch] | None

    @property
    def ids(self) -> set[str]:
        return set(self.trials["trial_id"].to_pylist())


class Store:
    """The results folder of one sweep. Made by `Store.open`. `problems` names the files that were passed over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._read: dict[Path, tuple[object, pa.Table]] = {}  # inode, size and time of change of a file; its rows
        # Called before every write, under the lock. It raises if this process may not write any more.
        self.guard: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, folder: str | Path, *, write: bool) -> Store:
        """Return the store in `folder`. If the folder is absent, the store is empty, and `write` makes the folder.

        Raises HpxferError if the folder cannot be read or written, or holds a file of another schema. Nothing in it
        was changed then.
        """
        store = cls(Path(folder))
        with store._writing(_FIX):
            if write:
                store.folder.mkdir(parents=True, exist_ok=True)
        with store._reading():
            for path in parquet.unknown_files(store.folder):
                store._note(f"{path}: not a name that the store gives; {_LEFT}")
            for part in list_parts(store.folder):
                store._try(parquet.check, part.trials, TRIALS)
                if store._try(parquet.check, part.curves, CURVES) is not None and part.curves and not part.trials:
                    store._note(f"{part.curves}: has no trials file beside it; {_LEFT}")
        with store._writing(_FIX):
            if write:
                prove_writable(store.folder)
        return store

    def read_trials(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the table TRIALS, or these columns of it: one row per trial, ordered by trial_id."""
        rows = self._rows().select(list(columns or TRIALS.names))
        target = pa.schema([TRIALS.field(name) for name in rows.column_names], metadata=TRIALS.metadata)
        return pa.Table.from_batches(parquet.plain(rows), target)

    def done_ids(self) -> set[str]:
        """Return the ids of the trials that are never run again: those that finished or diverged."""
        return set(done_rows(self._rows())["trial_id"].to_pylist())

    def outcomes(
        self, loss: str, *, stopped: bool = False
    ) -> dict[str, tuple[str, float | None, float | None, int | None]]:
        """Return trial id -> status, the loss in column `loss`, wall_s and stack_size, for the trials that are done.

        With `stopped`, trials that were stopped early are included.
        """
        found = done_rows(self._rows(), *([STOPPED] if stopped else []))
        rows = found.select(["trial_id", "status", loss, "wall_s", "stack_size"]).to_pylist()
        return {row["trial_id"]: (row["status"], row[loss], row["wall_s"], row["stack_size"]) for row in rows}

    def trainer_version(self) -> int | None:
        """Return the newest trainer version of the trials that are done, else of all trials. None if there are none."""
        rows = self._rows()
        done = done_rows(rows)
        newest: int | None = pc.max((done if len(done) else rows)["trainer_version"]).as_py()
        return newest

    def read_curves(self) -> pa.Table:
        """Return the table CURVES of the trials in `read_trials()`."""
        with self._reading():
            sources = self._sources(parquet.read_curves)
        return pa.Table.from_batches(_curves(sources), CURVES).unify_dictionaries()

    def without_curves(self) -> set[str]:
        """Return the ids of the ended trials that have lost their curves: the file with them is gone or damaged."""
        with self._reading():
            lost = [source.trials for source in self._sources(CurvesOnDisk) if source.curves is None]
        ids = set(done_rows(joined(lost), STOPPED)["trial_id"].to_pylist())
        if ids:
            self._note(f"{self.folder}: {len(ids)} trials have lost their curves; a run trains them again")
        return ids

    def append(self, pairs: Sequence[Pair]) -> None:
        """Store results as the next part. If the disk refuses, raise HpxferError and leave the store unchanged."""
        if not pairs:
            return
        rows = trials_table(pairs)
        sizes = [sum(len(text.encode()) for text in row.values() if isinstance(text, str)) for row in rows.to_pylist()]
        longest = rows.slice(sizes.index(max(sizes)), 1)  # a later part may hold it alone, and must be readable then
        if why := next(filter(None, map(parquet.why_too_long, map(parquet.coded, (rows, longest)))), None):
            raise HpxferError(f"{self.folder}: {why}; give the roles of the model fewer and shorter names")
        (kept,) = best_rows([rows])
        curves = curves_table([pairs[row][1] for row in kept.to_pylist()])
        with self._changing(lambda: self._how_many_stored(len(kept))):
            self._write_part(next_number(self.folder), rows.take(kept).to_batches(), curves.to_batches())

    def adopt(self, other: Store, trial_ids: Collection[str]) -> set[str]:
        """Copy the trials that are done in another store, with their curves, as the next part. Return their ids.

        A row is copied unchanged, with where and when it was trained. The other store is only read. The files that it
        cannot read are in its `problems`.
        """
        with other._reading():
            sources = [
                replace(source, trials=of_trials(done_rows(source.trials), trial_ids))
                for source in other._sources(CurvesOnDisk)
            ]
            ids = {trial_id for source in sources for trial_id in source.ids}
            if ids:
                with self._changing(lambda: self._how_many_stored(len(ids))):
                    self._merge(next_number(self.folder), sources)
        return ids

    def compact(self) -> None:
        """Merge all parts into `trials.parquet` and `curves.parquet`, then remove the parts that were merged.

        If one of these two files exists and cannot be read, it is left alone, and the numbered parts are merged into
        one numbered part.
        """
        with self._changing("nothing is lost; make room in the folder and run the sweep again"):
            parts = list_parts(self.folder)
            if all(part.number is None for part in parts):
                return
            # A part whose curves cannot be read stays, so that its trials still count as those that lost their curves.
            # If a copy has both, all that is left of a part may be its trials: then no row of it counts.
            sources = [
                source
                for source in self._sources(CurvesOnDisk)
                if source.curves is not None or (source.part.curves is None and not source.ids)
            ]
            moved = [source for source in sources if source.part.number is not None]
            if moved and self._has_read_compacted(parts, sources):
                self._merge(None, sources)
            elif len(moved) > 1:
                self._merge(next_number(self.folder), moved)
            else:
                moved = []
            for source in moved:
                # Curves first: trials without curves give way to their copy, curves without trials would stay for good.
                for path in filter(None, (source.part.curves, source.part.trials)):
                    os.unlink(path)
            self._remove_uncommitted()

    def save_sweep(self, spec: SweepSpec, digest: str) -> None:
        """Write sweep.yaml: the sweep with the digest of its data. A different sweep.yaml is kept beside it."""
        with self._changing("nothing is lost; make room in it and run again"):
            save_sweep(self.folder, spec, digest)

    def _rows(self, *, lock: bool = True) -> pa.Table:
        """Return one coded row per trial, ordered by trial_id. Of equal rows it does not matter which one is taken."""
        with self._reading() if lock else nullcontext():
            return joined([source.trials for source in self._sources(lambda _: ())])

    def _sources(self, curves: Callable[[Path], Iterable[pa.RecordBatch]]) -> list[_Source]:
        """Return the parts with readable trials, with the rows that count. `curves` opens a file, or refuses it.

        Of equal rows, a row whose curves can be read counts first, and of these the row in the newest part: it may have
        the curves that another one lost. The compacted part is the oldest.
        """
        found, parts = [], list_parts(self.folder)
        self._read = {part.trials: self._read[part.trials] for part in parts if part.trials in self._read}
        for part in parts:
            if (trials := self._try(self._trials, part.trials)) is not None:
                found.append(_Source(part=part, trials=trials, curves=self._try(curves, part.curves)))
        found.sort(key=lambda source: (source.curves is None, -(source.part.number or 0)))
        best = best_rows([source.trials for source in found])
        return [replace(source, trials=source.trials.take(rows)) for source, rows in zip(found, best, strict=True)]

    def _trials(self, path: Path) -> pa.Table:
        """Return a file's coded rows. It is read once, because a run that was killed may leave thousands of parts."""
        stat = path.stat() if path.exists() else None
        state = stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if path not in self._read or self._read[path][0] != state:
            self._read[path] = state, parquet.read_trials(path)
        return self._read[path][1]

    def _has_read_compacted(self, parts: Sequence[Part], sources: Sequence[_Source]) -> bool:
        """Return whether everything in the compacted part was read, so that a merged part may replace it."""
        old = next((part for part in parts if part.number is None), Part(number=None))
        if old.trials is not None and all(source.part != old for source in sources):
            return False
        # Curves without trials: of a crash in the first `compact`, or all that is left of trials that someone removed.
        curves = self._try(CurvesOnDisk, old.curves)
        ids = {trial_id for source in sources for trial_id in source.ids}
        return old.curves is None or (curves is not None and curves.trial_ids <= ids)

    def _remove_uncommitted(self) -> None:
        """Remove curves of an append that a crash ended before their trials, once other files hold all of them."""
        parts = list_parts(self.folder)
        if uncommitted := [part.curves for part in parts if part.number is not None and part.trials is None]:
            committed = [self._try(CurvesOnDisk, part.curves) for part in parts if part.trials is not None]
            held = {trial_id for curves in committed if curves is not None for trial_id in curves.trial_ids}
            for path in filter(None, uncommitted):
                if (curves := self._try(CurvesOnDisk, path)) is not None and curves.trial_ids <= held:
                    os.unlink(path)

    def _merge(self, number: int | None, sources: Sequence[_Source]) -> None:
        """Write the sources as one part."""
        self._write_part(number, parquet.plain(joined([source.trials for source in sources])), _curves(sources))

    def _write_part(
        self, number: int | None, trials: Iterable[pa.RecordBatch], curves: Iterable[pa.RecordBatch]
    ) -> None:
        write_files(
            {
                part_path(self.folder, "curves", number): lambda file: parquet.write(file, CURVES, curves),
                part_path(self.folder, "trials", number): lambda file: parquet.write(file, TRIALS, trials),
            }
        )

    def _how_many_stored(self, num_lost: int) -> str:
        return (
            f"{len(done_rows(self._rows(lock=False)))} trials are safely stored in it, the last {num_lost} are not; "
            f"make room in it and run again: only the missing trials are trained"
        )

    def _try(self, reader: Callable[..., T], path: Path | None, *args: object) -> T | None:
        """Return what the reader returns, or None for a file that is absent or has to be passed over."""
        if path is None:
            return None
        try:
            return reader(path, *args)
        except parquet.Unreadable as error:
            self._note(f"{path}: {error}; {_LEFT}")
            return None

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with locked(self.folder, exclusive=False):
            try:
                yield
            except OSError as error:
                closed = path_problem(error) if isinstance(error, PermissionError | NotADirectoryError) else None
                raise HpxferError(closed or f"{self.folder}: cannot be read: {reason(error)}") from None

    @contextmanager
    def _changing(self, fix: str | Callable[[], str]) -> Iterator[None]:
        with locked(self.folder, exclusive=True), self._writing(fix):
            self.guard()
            yield

    @contextmanager
    def _writing(self, fix: str | Callable[[], str]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            tail = fix if isinstance(fix, str) else fix()
            raise HpxferError(f"{self.folder}: cannot be written: {reason(error)}; {tail}") from None


def _curves(sources: Sequence[_Source]) -> Iterator[pa.RecordBatch]:
    """Yield the curves of each source's own trials."""
    for source in sources:
        if source.curves is not None and (ids := source.ids):
            for batch in source.curves:
                yield points_of_trials(batch, ids)
