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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa

from hpxfer.errors import HpxferError
from hpxfer.host.files import locked, path_problem, prove_writable, reason, write_files
from hpxfer.spec import SweepSpec
from hpxfer.store import merge, parquet
from hpxfer.store.parquet import Listing, Part, list_parts, part_path
from hpxfer.store.rows import Pair, curves_table, trials_table
from hpxfer.store.schema import CURVES, TRIALS
from hpxfer.store.sweep_file import save_sweep

T = TypeVar("T")
_FileState = tuple[int, int, int]  # inode, size and time of change


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A part, those of its rows that count for their trial, and its curves file if that can be read."""

    part: Part
    trials: pa.Table
    curves: Path | None

    @property
    def whole(self) -> bool:
        """Whether every file of the part can be read."""
        return self.curves == self.part.curves


class Store:
    """The results folder of one sweep. Made by `Store.open`. `problems` names the files that were passed over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._fully_read: dict[Path, _FileState] = {}  # trials files of which every column was read, as they were then
        # Called before every write, under the lock. It raises if this process may not write any more.
        self.guard: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, folder: str | Path, *, write: bool) -> Store:
        """Return the store in `folder`. If the folder is absent, the store is empty, and `write` makes the folder.

        Raises HpxferError if the folder cannot be read or written, or holds a file of another schema. Nothing in it
        was changed then.
        """
        store = cls(Path(folder))
        fix = "choose another folder with --results"
        if write:
            with store._writing(fix):
                store.folder.mkdir(parents=True, exist_ok=True)
        with store._reading():
            store._check_files()
        if write:
            with store._writing(fix):
                prove_writable(store.folder)
        return store

    def done_ids(self) -> set[str]:
        """Return the ids of the trials that are never run again: those that finished or diverged."""
        with self._reading():
            return self._done_ids()

    def outcomes(
        self, loss: str, *, stopped: bool = False
    ) -> dict[str, tuple[str, float | None, float | None, int | None]]:
        """Return trial id -> status, the loss in column `loss`, wall_s and stack_size, for the trials that are done.

        With `stopped`, trials that were stopped early are included.
        """
        best: dict[str, tuple[tuple[bool, str], str, float | None, float | None, int | None]] = {}
        with self._reading():
            for rows in self._columns("trial_id", "status", "finished_at", loss, "wall_s", "stack_size"):
                for trial_id, status, finished_at, value, wall_s, stack_size in rows:
                    if status in merge.DONE or (stopped and status == merge.STOPPED):
                        rank = (status in merge.DONE, finished_at or "")
                        if trial_id not in best or rank > best[trial_id][0]:
                            best[trial_id] = (rank, status, value, wall_s, stack_size)
        return {trial_id: row[1:] for trial_id, row in best.items()}

    def trainer_version(self) -> int | None:
        """Return the newest trainer version of the trials that are done, else of all trials. None if there are none."""
        with self._reading():
            done: set[int] = set()
            others: set[int] = set()
            for rows in self._columns("status", "trainer_version"):
                for status, version in rows:
                    (done if status in merge.DONE else others).add(version)
            return max(done or others, default=None)

    def read_trials(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the table TRIALS, or these columns of it: one row per trial, ordered by trial_id."""
        with self._reading():
            rows = merge.joined([source.trials for source in self._sources(parquet.check, columns)])
            return parquet.plain(rows if columns is None else rows.select(list(columns)), TRIALS)

    def read_curves(self) -> pa.Table:
        """Return the table CURVES of the trials in `read_trials()`."""
        whole: dict[Path, pa.Table] = {}

        def read(path: Path, schema: pa.Schema) -> bool:
            whole[path] = parquet.table(path, schema)
            return True

        with self._reading():
            sources = self._sources(read)
        tables = [
            merge.curves_of(whole[source.curves], source.trials["trial_id"])
            for source in sources
            if source.curves is not None and len(source.trials)
        ]
        return pa.concat_tables([CURVES.empty_table(), *tables]).unify_dictionaries()

    def without_curves(self) -> set[str]:
        """Return the ids of the ended trials that have lost their curves: the file with them is gone or damaged."""
        with self._reading():
            tables = [source.trials for source in self._sources(parquet.check_all, []) if source.curves is None]
        rows = [row for table in tables for row in table.select(["trial_id", "status"]).to_pylist()]
        lost = {row["trial_id"] for row in rows if row["status"] != "failed"}
        if lost:
            self._note(f"{self.folder}: {len(lost)} trials have lost their curves; a run trains them again")
        return lost

    def append(self, pairs: Sequence[Pair]) -> None:
        """Store results as the next part. If the disk refuses, raise HpxferError and leave the store unchanged."""
        if not pairs:
            return
        rows = trials_table(pairs)
        keep = merge.best_rows([rows])[0]
        curves = curves_table([pairs[row][1] for row in keep])
        with self._changing(lambda: self._how_many_stored(len(keep))):
            number = list_parts(self.folder).next_number
            self._write_part(number, rows.take(pa.array(keep)), curves.to_batches())

    def adopt(self, other: Store, trial_ids: Collection[str]) -> set[str]:
        """Copy the trials that are done in another store, with their curves, as the next part. Return their ids.

        A row is copied unchanged, with where and when it was trained. The other store is only read. The files that it
        cannot read are in its `problems`.
        """
        with other._reading():
            sources = [
                replace(source, trials=merge.done_of(source.trials, trial_ids))
                for source in other._sources(parquet.check_all)
            ]
            rows = merge.joined([source.trials for source in sources])
            if len(rows):
                with self._changing(lambda: self._how_many_stored(len(rows))):
                    self._write_part(list_parts(self.folder).next_number, rows, _curves(sources))
        return set(rows["trial_id"].to_pylist())

    def compact(self) -> None:
        """Merge all parts into `trials.parquet` and `curves.parquet`, then remove the parts that were merged.

        If one of these two files exists and cannot be read, it is left alone, and the numbered parts are merged into
        one numbered part.
        """
        fix = "nothing is lost; make room in the folder and run the sweep again"
        with self._changing(fix):
            if all(part.number is None for part in list_parts(self.folder).parts):
                return
            # A part whose curves cannot be read stays, so that its trials still count as those that lost their curves.
            # If a copy has both, all that is left of a part may be its trials: then no row of it counts.
            read = self._sources(parquet.check_all)
            sources = [source for source in read if source.curves or (source.whole and not len(source.trials))]
            moved = [source for source in sources if source.part.number is not None]
            listing = list_parts(self.folder)
            if self._replaceable(listing, sources):
                if any(source.part.number is not None for source in sources):
                    self._merge(None, sources, moved)
            elif len(moved) > 1:
                self._merge(listing.next_number, moved, moved)
            self._remove_uncommitted()

    def save_sweep(self, spec: SweepSpec, digest: str) -> None:
        """Write sweep.yaml: the sweep with the digest of its data. A different sweep.yaml is kept beside it."""
        with self._changing("nothing is lost; make room in it and run again"):
            save_sweep(self.folder, spec, digest)

    def _check_files(self) -> None:
        """Note every file that will be passed over. Raise HpxferError for a file of another schema."""
        listing = list_parts(self.folder)
        for path in listing.unknown_files:
            self._pass_over(path, "not a name that the store gives")
        for part in listing.parts:
            self._try(parquet.check, part.trials, TRIALS)
            if self._try(parquet.check, part.curves, CURVES) and part.curves and not part.trials:
                self._pass_over(part.curves, "has no trials file beside it")

    def _done_ids(self) -> set[str]:
        return {
            trial_id
            for rows in self._columns("trial_id", "status")
            for trial_id, status in rows
            if status in merge.DONE
        }

    def _columns(self, *names: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of each readable part, with these columns only."""
        for part in list_parts(self.folder).parts:
            table = self._try(self._coded_table, part.trials, TRIALS, list(names))
            if table is not None:
                yield list(zip(*(table[name].to_pylist() for name in names), strict=True))

    def _sources(
        self, check: Callable[[Path, pa.Schema], object], columns: Sequence[str] | None = None
    ) -> list[_Source]:
        """Return the parts with readable trials, with the rows that count. `check` raises if curves cannot be read.

        Of equal rows, a row whose curves can be read counts first, and of these the row in the newest part: it may have
        the curves that another one lost. The compacted part is the oldest. With `columns`, only these columns of the
        trials are read.
        """
        names = None if columns is None else list(dict.fromkeys([*merge.KEYS, *columns]))
        found = []
        for part in list_parts(self.folder).parts:
            trials = self._try(self._coded_table, part.trials, TRIALS, names)
            if trials is not None:
                readable = self._try(check, part.curves, CURVES)
                found.append(_Source(part=part, trials=trials, curves=part.curves if readable else None))
        found.sort(key=lambda source: (source.curves is None, -(source.part.number or 0)))
        best = merge.best_rows([source.trials for source in found])
        return [
            replace(source, trials=source.trials.take(pa.array(rows, pa.int64())))
            for source, rows in zip(found, best, strict=True)
        ]

    def _coded_table(self, path: Path, schema: pa.Schema, columns: list[str] | None) -> pa.Table:
        """Return a file's rows, or these columns of them. A file with any damaged column counts as unreadable.

        Otherwise a trial would be done for the driver, which reads few columns, and absent for a reader of all
        columns. So a file is read in full, but only once, because a run that was killed may leave thousands of parts.
        """
        state = _file_state(path)
        if columns is not None and state is not None and self._fully_read.get(path) == state:
            return parquet.table(path, schema, columns, coded=True)
        rows = parquet.table(path, schema, coded=True)
        if state is not None:
            self._fully_read[path] = state
        return rows if columns is None else rows.select(columns)

    def _replaceable(self, listing: Listing, sources: Sequence[_Source]) -> bool:
        """Return whether everything in the compacted part was read, so that a merged part may replace it."""
        old = listing.compacted
        if old.trials is not None and all(source.part != old for source in sources):
            return False
        # Curves without trials: of a crash in the first `compact`, or all that is left of trials that someone removed.
        ids = set() if old.curves is None else self._try(_ids_of_curves, old.curves, CURVES)
        return ids is not None and ids <= {
            trial_id for source in sources for trial_id in source.trials["trial_id"].to_pylist()
        }

    def _merge(self, number: int | None, sources: Sequence[_Source], moved: Sequence[_Source]) -> None:
        """Write the sources as one part, then remove those of them that were moved."""
        self._write_part(number, merge.joined([source.trials for source in sources]), _curves(sources))
        for source in moved:
            # Curves first: trials without curves give way to their copy, curves without trials would stay for good.
            for path in (source.part.curves, source.part.trials):
                if path is not None:
                    os.unlink(path)

    def _remove_uncommitted(self) -> None:
        """Remove curves of an append that a crash ended before their trials, once other files hold all of them."""
        parts = list_parts(self.folder).parts
        uncommitted = [part.curves for part in parts if part.number is not None and part.trials is None and part.curves]
        if not uncommitted:
            return
        held: set[str] = set()
        for part in parts:
            if part.trials is not None:
                held |= self._try(_ids_of_curves, part.curves, CURVES) or set()
        for path in uncommitted:
            ids = self._try(_ids_of_curves, path, CURVES)
            if ids is not None and ids <= held:
                os.unlink(path)

    def _write_part(self, number: int | None, rows: pa.Table, curves: Iterable[pa.RecordBatch]) -> None:
        def write_trials(file: IO[bytes]) -> None:
            parquet.write(file, TRIALS, _plain_batches(rows))

        write_files(
            {
                part_path(self.folder, "curves", number): lambda file: parquet.write(file, CURVES, curves),
                part_path(self.folder, "trials", number): write_trials,
            }
        )

    def _how_many_stored(self, num_lost: int) -> str:
        return (
            f"{len(self._done_ids())} trials are safely stored in it, the last {num_lost} are not; "
            f"make room in it and run again: only the missing trials are trained"
        )

    def _try(self, reader: Callable[..., T], path: Path | None, schema: pa.Schema, *args: object) -> T | None:
        """Return what the reader returns, or None for a file that is absent or has to be passed over."""
        if path is None:
            return None
        try:
            return reader(path, schema, *args)
        except parquet.Unreadable as error:
            self._pass_over(path, str(error))
            return None

    def _pass_over(self, path: Path, why: str) -> None:
        self._note(f"{path}: {why}; passed over and left where it is")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with locked(self.folder, exclusive=False):
            try:
                yield
            except OSError as error:
                closed = path_problem(error) if isinstance(error, PermissionError) else None
                why = closed or f"{self.folder}: cannot be read: {_reason(error)}; name a results folder"
                raise HpxferError(why) from None

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
            raise HpxferError(f"{self.folder}: cannot be written: {_reason(error)}; {tail}") from None


def _curves(sources: Sequence[_Source]) -> Iterator[pa.RecordBatch]:
    """Yield the curves of each source's own trials."""
    for source in sources:
        if source.curves is not None and len(source.trials):
            wanted = source.trials["trial_id"].to_pylist()
            for batch in parquet.batches(source.curves, CURVES):
                yield merge.of_trials(batch, wanted)


def _ids_of_curves(path: Path, schema: pa.Schema) -> set[str]:
    batches = parquet.batches(path, schema)
    return {trial_id for batch in batches for trial_id in batch.column("trial_id").unique().to_pylist()}


def _file_state(path: Path) -> _FileState | None:
    """Return values that change whenever the file changes, or None if they cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _plain_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield rows in the types that are written, some at a time, because their texts take ten times the memory."""
    for start in range(0, len(rows), parquet.PLAIN_ROWS):
        yield from parquet.plain(rows.slice(start, parquet.PLAIN_ROWS), TRIALS).to_batches()


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return "a file of that name is in the way"
    return reason(error)
