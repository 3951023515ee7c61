"""The Parquet files of the store: the names of their parts, and each written, read, or said to be damaged."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, cut, first_line
from hpxfer.store import bounds
from hpxfer.store.schema import SCHEMA_VERSION, VERSION_KEY

# Rows that are written, and read, at a time.
BATCH_ROWS = 2**18
_READ_ROWS = 2**16
# Rows whose texts are copied at a time.
PLAIN_ROWS = 2**10
_BUFFER_BYTES = 2**20


class Unreadable(Exception):
    """A file that has to be passed over. The message says why."""


def check(path: Path, schema: pa.Schema) -> bool:
    """Return True if a file has this schema. Raise Unreadable if not."""
    with _opened(path, schema):
        return True


def check_all(path: Path, schema: pa.Schema) -> bool:
    """Return True if every row can be read. Raise Unreadable if not."""
    for _ in batches(path, schema):
        pass
    return True


def table(path: Path, schema: pa.Schema, columns: list[str] | None = None, *, coded: bool = False) -> pa.Table:
    """Return the file's rows. Raise Unreadable if it is not a complete file of `schema`.

    With `coded`, each distinct text is in memory once. Many rows share their texts, which saves nine tenths of the
    memory.
    """
    texts = [column.name for column in schema if column.type == pa.string()]
    with _opened(path, schema, texts) as file:
        names = columns or schema.names
        found = file.read(names)
        if why := bounds.why_too_long(found, schema):
            raise Unreadable(why)
        wanted = pa.schema([_coded(schema.field(name), texts) for name in names], metadata=schema.metadata)
        found = found.select(names).cast(wanted)
        return found if coded else plain(found, schema)


def plain(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return coded rows in the types of the schema. They may have only some of its columns.

    They are cut into chunks, because a chunk holds at most 2 GiB of text.
    """
    target = pa.schema([schema.field(name) for name in rows.column_names], metadata=schema.metadata)
    chunks = [rows.slice(start, PLAIN_ROWS).cast(target) for start in range(0, len(rows), PLAIN_ROWS)]
    return pa.concat_tables([target.empty_table(), *chunks])


def batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the file's rows. Raise Unreadable if it is not a complete file of `schema`."""
    with _opened(path, schema) as file:
        yield from file.iter_batches(_READ_ROWS, columns=schema.names, use_threads=False)


def write(file: IO[bytes], schema: pa.Schema, chunks: Iterable[pa.RecordBatch]) -> None:
    """Write rows as a Parquet file, in groups that are worth compressing however small the chunks are."""
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        held: list[pa.RecordBatch] = []

        def write_held() -> None:
            writer.write_table(pa.Table.from_batches(held, schema), row_group_size=2 * BATCH_ROWS)
            held.clear()

        for chunk in chunks:
            held.append(chunk)
            if sum(map(len, held)) >= BATCH_ROWS:
                write_held()
        write_held()


def _coded(field: pa.Field, texts: Collection[str]) -> pa.Field:
    return field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in texts else field


@contextmanager
def _opened(path: Path, schema: pa.Schema, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Yield the open file. Raise HpxferError for another version of `schema`, and Unreadable for anything else."""
    try:
        if not path.stat().st_size:
            raise Unreadable("an empty file")
        # Arrow takes a name that is no UTF-8 as bytes only.
        with pa.OSFile(os.fsencode(path)) as source, _file(source, texts) as file:
            _check_version(path, file.schema_arrow.metadata or {})
            _check_columns(file.schema.to_arrow_schema(), schema)
            if why := bounds.why_too_large(file.metadata, schema, path.stat().st_size):
                raise Unreadable(why)
            yield file
    except HpxferError:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise Unreadable(f"not a whole Parquet file ({first_line(error).rstrip('.')})") from None
    except OSError as error:
        # Damage that Arrow finds is an OSError without a number.
        why = f"cannot be read: {error.strerror}" if error.errno else f"damaged ({first_line(error).rstrip('.')})"
        raise Unreadable(why) from None


def _file(source: pa.NativeFile, texts: Sequence[str]) -> pq.ParquetFile:
    # The file is read piece by piece, because it may be far larger than the rows that are kept.
    how = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": _BUFFER_BYTES}
    try:
        return pq.ParquetFile(source, read_dictionary=list(texts), **how)
    except KeyError:
        return pq.ParquetFile(source, **how)  # lacks one of the columns; the checks of the schema say more


def _check_version(path: Path, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(VERSION_KEY)
    if version is None or not version.isdigit():
        raise Unreadable("a Parquet file that hpxfer did not write")
    if version != str(SCHEMA_VERSION).encode():
        raise HpxferError(
            f"{path}: must have version {SCHEMA_VERSION} of the store's schema, got {cut(version.decode())}; use the "
            "hpxfer that wrote it, or give another folder with --results; nothing was changed"
        )


def _check_columns(found: pa.Schema, schema: pa.Schema) -> None:
    for field in schema:
        index = found.get_field_index(field.name)
        if index < 0 or found.field(index).type != field.type:
            raise Unreadable(f"has no column {field.name} of type {field.type}")
    if len(found) != len(schema):
        raise Unreadable(f"has columns beyond the schema: {', '.join(sorted(set(found.names) - set(schema.names)))}")


# Parts: the names of a store's files. A part is a pair `trials-000001.parquet`, `curves-000001.parquet`.
#
# `compact` leaves one part without a number. The trials file commits its part, because it is renamed last.

Kind = Literal["trials", "curves"]

# There is one spelling per number, so that two files never share a number.
_NAME = re.compile(r"(trials|curves)(?:-([0-9]{6}|[1-9][0-9]{6,}))?\.parquet")


@dataclass(frozen=True, kw_only=True)
class Part:
    """The files of one part that exist. `number` is None for the compacted part."""

    number: int | None
    trials: Path | None = None
    curves: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The parts of a folder, the numbered ones first and in order, and the Parquet files with other names."""

    parts: tuple[Part, ...]
    unknown_files: tuple[Path, ...]

    @property
    def compacted(self) -> Part:
        return next((part for part in self.parts if part.number is None), Part(number=None))

    @property
    def next_number(self) -> int:
        """A number above all numbers in use, by readable and by unreadable files."""
        return 1 + max((part.number or 0 for part in self.parts), default=0)


def part_path(folder: Path, kind: Kind, number: int | None) -> Path:
    """Return the path of a part's file."""
    return folder / (f"{kind}.parquet" if number is None else f"{kind}-{number:06d}.parquet")


def list_parts(folder: Path) -> Listing:
    """Return the files of the folder, by name alone. The listing is empty if the folder is absent."""
    found: dict[int | None, dict[str, Path]] = {}
    unknown_files = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        names = []
    for name in names:
        if match := _NAME.fullmatch(name):
            kind, number = match.groups()
            found.setdefault(None if number is None else int(number), {})[kind] = folder / name
        elif name.endswith(".parquet"):
            unknown_files.append(folder / name)
    order = sorted(found, key=lambda number: (number is None, number or 0))
    parts = tuple(Part(number=number, **found[number]) for number in order)
    return Listing(parts=parts, unknown_files=tuple(unknown_files))
