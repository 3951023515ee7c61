"""Store: one sweep's results folder. The driver writes it; a run is resumed from it and from nothing else.

    sweep.yaml                                      the sweep as run
    trials-000001.parquet, curves-000001.parquet    a pair for each write
    trials.parquet, curves.parquet                  what `compact` makes of the pairs

A crash at any point loses no result: a file is there whole or not at all, and of rows that stand twice one is read.
A file that cannot be read, or that hpxfer did not write, is named in `problems`, passed over and left where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from hpxfer.errors import HpxferError
from hpxfer.files import locked, prove_writable, write_files
from hpxfer.spec import SweepSpec
from hpxfer.store import merge, parquet
from hpxfer.store.parts import Listing, Part, list_parts, part_path
from hpxfer.store.rows import Pair, curves_table, trials_table
from hpxfer.store.schema import CURVES, TRIALS
from hpxfer.store.sweep_file import save_sweep
from hpxfer.trial import FIRST_STORED_VERSION

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A part, the rows in it that stand for their trial, and its curves file if that can be read."""

    part: Part
    trials: pa.Table
    curves: Path | None

    @property
    def whole(self) -> bool:
        """Whether all that is there of the part can be read."""
        return self.curves == self.part.curves


class Store:
    """The results folder of one sweep. Made by `Store.open`. `problems` names the files that were passed over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    @classmethod
    def open(cls, folder: str | Path, *, write: bool) -> Store:
        """Return the store in `folder`; one that is not there is empty, and made if it is opened to write.

        Raises HpxferError if the folder cannot be read or written, or holds a file of a newer schema; then nothing
        in it was changed.
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
        """Return the ids of the trials that are not to be run again: finished or diverged."""
        with self._reading():
            return self._done_ids()

    def trainer_version(self) -> int | None:
        """Return the newest trainer version among the trials that are done, of all if none is; None without any."""
        with self._reading():
            done: set[int] = set()
            others: set[int] = set()
            for rows in self._columns("status", "trainer_version"):
                for status, version in rows:
                    (done if status in merge.DONE else others).add(version or FIRST_STORED_VERSION)
            return max(done or others, default=None)

    def read_trials(self) -> pa.Table:
        """Return the table TRIALS: a row for each trial, ordered by trial_id."""
        with self._reading():
            return merge.joined([source.trials for source in self._sources(parquet.check)])

    def read_curves(self) -> pa.Table:
        """Return the table CURVES of the trials in `read_trials()`."""
        with self._reading():
            sources = self._sources(parquet.check_all)
            return pa.Table.from_batches(_curves(sources), CURVES).unify_dictionaries()

    def append(self, pairs: Sequence[Pair]) -> None:
        """Store results as the next part; raise HpxferError, and leave what is stored as it is, if the disk refuses."""
        if not pairs:
            return
        rows = trials_table(pairs)
        keep = merge.best_rows([rows])[0]
        curves = curves_table([pairs[row][1] for row in keep])
        with locked(self.folder, exclusive=True), self._writing(lambda: self._what_is_safe(len(keep))):
            number = list_parts(self.folder).next_number
            self._write_part(number, rows.take(pa.array(keep)), curves.to_batches())

    def compact(self) -> None:
        """Merge all parts into `trials.parquet` and `curves.parquet`; then remove the parts that were merged.

        If a file of that name cannot be read, it is left alone and the numbered parts become one.
        """
        fix = "nothing is lost; make room in the folder and run the sweep again"
        with locked(self.folder, exclusive=True), self._writing(fix):
            sources = self._sources(parquet.check_all)
            # A part whose curves cannot be read today stays: its trials are copied, not moved.
            moved = [source for source in sources if source.part.number is not None and source.whole]
            listing = list_parts(self.folder)
            if self._replaceable(listing, sources):
                if any(source.part.number is not None for source in sources):
                    self._merge(None, sources, moved)
            elif len(moved) > 1:
                self._merge(listing.next_number, moved, moved)

    def save_sweep(self, spec: SweepSpec, digest: str) -> None:
        """Write sweep.yaml: the sweep with the digest of its data. A different one that is there is kept beside it."""
        with locked(self.folder, exclusive=True), self._writing("nothing is lost; make room in it and run again"):
            save_sweep(self.folder, spec, digest)

    def _check_files(self) -> None:
        """Note every file that will be passed over; raise HpxferError on one of a newer schema."""
        listing = list_parts(self.folder)
        for path in listing.strangers:
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
        """Yield the rows of each readable part, these columns only."""
        for part in list_parts(self.folder).parts:
            table = self._try(parquet.table, part.trials, TRIALS, list(names))
            if table is not None:
                yield list(zip(*(table[name].to_pylist() for name in names), strict=True))

    def _sources(self, check: Callable[[Path, pa.Schema], bool]) -> list[_Source]:
        """Return the parts with readable trials, and what each contributes; `check` says whether curves can be read.

        Of equal rows, one whose curves can be read stands for the trial, and one in a numbered part before its copy
        in the compacted part: a copy stands only for what is gone.
        """
        found = []
        for part in list_parts(self.folder).parts:
            trials = self._try(parquet.table, part.trials, TRIALS)
            if trials is not None:
                readable = self._try(check, part.curves, CURVES)
                found.append(_Source(part=part, trials=trials, curves=part.curves if readable else None))
        found.sort(key=lambda source: source.curves is None)
        best = merge.best_rows([source.trials for source in found])
        return [
            replace(source, trials=source.trials.take(pa.array(rows, pa.int64())))
            for source, rows in zip(found, best, strict=True)
        ]

    def _replaceable(self, listing: Listing, sources: Sequence[_Source]) -> bool:
        """Return whether all that the compacted part holds is known, so that a merged one may take its place."""
        old = listing.compacted
        if old.trials is not None and all(source.part != old for source in sources):
            return False
        # Curves without trials: of a crash in the first `compact`, or all that is left of trials that someone removed.
        ids = set() if old.curves is None else self._try(_ids_of_curves, old.curves, CURVES)
        return ids is not None and ids <= {one for source in sources for one in source.trials["trial_id"].to_pylist()}

    def _merge(self, number: int | None, sources: Sequence[_Source], moved: Sequence[_Source]) -> None:
        """Write the sources as one part, then remove those of them that were moved."""
        self._write_part(number, merge.joined([source.trials for source in sources]), _curves(sources))
        for source in moved:
            # Curves first: trials without curves give way to their copy, curves without trials would stay for good.
            for path in (source.part.curves, source.part.trials):
                if path is not None:
                    os.unlink(path)

    def _write_part(self, number: int | None, rows: pa.Table, curves: Iterable[pa.RecordBatch]) -> None:
        write_files(
            {
                part_path(self.folder, "curves", number): lambda file: parquet.write(file, CURVES, curves),
                part_path(self.folder, "trials", number): lambda file: parquet.write(file, TRIALS, rows.to_batches()),
            }
        )

    def _what_is_safe(self, num_lost: int) -> str:
        return (
            f"{len(self._done_ids())} trials are safely stored there, the last {num_lost} are not; "
            f"make room in it and run again: only what is missing is trained"
        )

    def _try(self, reader: Callable[..., T], path: Path | None, schema: pa.Schema, *args: object) -> T | None:
        """Return what the reader gives; None for a file that is not there or has to be passed over."""
        if path is None:
            return None
        try:
            return reader(path, schema, *args)
        except parquet.Unreadable as error:
            self._pass_over(path, str(error))
            return None

    def _pass_over(self, path: Path, why: str) -> None:
        problem = f"{path}: {why}; passed over and left where it is"
        if problem not in self.problems:
            self.problems.append(problem)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with locked(self.folder, exclusive=False):
            try:
                yield
            except OSError as error:
                raise HpxferError(f"{self.folder}: cannot be read: {_reason(error)}; name a results folder") from None

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
            ids = source.trials["trial_id"].to_pylist()
            yield from (merge.of_trials(batch, ids) for batch in parquet.batches(source.curves, CURVES))


def _ids_of_curves(path: Path, schema: pa.Schema) -> set[str]:
    return {one for batch in parquet.batches(path, schema) for one in batch.column("trial_id").unique().to_pylist()}


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return "a file of that name is in the way"
    return error.strerror or str(error)
