"""The Parquet files of the store: the names of their parts, and each written, read, or said to be damaged.

A part is a pair `trials-000001.parquet`, `curves-000001.parquet`. `compact` leaves one part without a number. The
trials file commits its part, because it is renamed last.

A few kilobytes of Parquet can stand for gigabytes: compression hides a text that is repeated, and rows that are equal.
So the number of rows of a file and the sizes of its columns, as its footer tells them, are checked before its rows are
read, and its texts before they are copied to every row. What the store writes keeps to these bounds, and so does what
it merges.

Parquet has checksums of its pages, but none of the footer, which says where the pages are. Arrow may end the process
when a footer is damaged. So the store writes a checksum before the footer, in bytes that no reader looks at.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, cut, first_line
from hpxfer.store.schema import ADDED, CURVES, SCHEMA_VERSION, TRIALS, VERSION_KEY

Kind = Literal["trials", "curves"]
# There is one spelling per number, so that two files never share a number.
_NAME = re.compile(r"(trials|curves)(?:-([0-9]{6}|[1-9][0-9]{6,}))?\.parquet")
# Rows that are written, and read, at a time.
BATCH_ROWS = 2**18
_READ_ROWS = 2**16
# Rows whose texts are copied at a time.
_PLAIN_ROWS = 2**10
_BUFFER_BYTES = 2**20
# A name has at most so many bytes, another text (JSON or an error) so many, and the texts of a row so many on average.
# Rows of real sweeps have 3 kB of text. The error of a failed trial is stored with at most MOST_ERROR_BYTES.
MOST_NAME_BYTES = 2**12
MOST_TEXT_BYTES = 2**20
MOST_ROW_TEXT_BYTES = 2**16
MOST_ERROR_BYTES = 2**14
# A trial has an id of 16 random bytes, which no compression makes smaller. A point of a real curve takes 5 bytes of a
# file, but a curve that is constant takes nearly none.
_BYTES_PER_TRIAL = 16
_POINTS_PER_BYTE = 4
_FREE_TRIALS = 64
_FREE_POINTS = 2**20
# These bytes stand before the footer. The 4 bytes between are the CRC-32, little-endian, of the rest of the file.
_CHECKSUM = b"crc32 of the footer:"
_TAIL_BYTES = 8  # the length of the footer, and `PAR1`
# How many bytes a file may unpack to: real files unpack to 30 times their size at most.
_FREE_UNPACKED_BYTES = 2**26
_MOST_UNPACKED = 2**10
_TEXTS = [column.name for column in TRIALS if column.type == pa.string()]
# TRIALS as they are read: each distinct text is in memory once. Many rows share theirs, which saves nine tenths of it.
_CODED = pa.schema(
    [
        column.with_type(pa.dictionary(pa.int32(), pa.string())) if column.name in _TEXTS else column
        for column in TRIALS
    ],
    metadata=TRIALS.metadata,
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The files of one part that exist. `number` is None for the compacted part."""

    number: int | None
    trials: Path | None = None
    curves: Path | None = None


def part_path(folder: Path, kind: Kind, number: int | None) -> Path:
    """Return the path of a part's file."""
    return folder / (f"{kind}.parquet" if number is None else f"{kind}-{number:06d}.parquet")


def list_parts(folder: Path) -> list[Part]:
    """Return the parts in the folder, by name alone, the numbered ones first and in order."""
    found: dict[int | None, dict[str, Path]] = {}
    for match in map(_NAME.fullmatch, _names(folder)):
        if match is not None:
            found.setdefault(int(match[2]) if match[2] else None, {})[match[1]] = folder / match[0]
    order = sorted(found, key=lambda number: (number is None, number or 0))
    return [Part(number=number, **found[number]) for number in order]


def next_number(folder: Path) -> int:
    """Return a number above all numbers in use, by readable and by unreadable files."""
    return 1 + max((part.number or 0 for part in list_parts(folder)), default=0)


def unknown_files(folder: Path) -> list[Path]:
    """Return the Parquet files of the folder with names that the store does not give."""
    return [folder / name for name in _names(folder) if name.endswith(".parquet") and not _NAME.fullmatch(name)]


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


class Unreadable(Exception):
    """A file that has to be passed over. The message says why."""


def check(path: Path, schema: pa.Schema) -> tuple[()]:
    """Return nothing if a file has this schema. Raise Unreadable if not."""
    with _opened(path, schema):
        return ()


def read_trials(path: Path) -> pa.Table:
    """Return the rows of a file of TRIALS, coded (see `plain`). Raise Unreadable if it is not a complete one."""
    with _opened(path, TRIALS, _TEXTS) as file:
        found = _with_added(file.read())
        if why := why_too_long(found):
            raise Unreadable(why)
        return coded(found)


def coded(rows: pa.Table) -> pa.Table:
    """Return rows of TRIALS with each distinct text in memory once."""
    return rows.select(TRIALS.names).cast(_CODED)


def plain(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield coded rows of TRIALS, or of some of its columns, in the types that are written.

    Some at a time: their texts take ten times the memory, and a chunk holds at most 2 GiB of text.
    """
    target = pa.schema([TRIALS.field(name) for name in rows.column_names], metadata=TRIALS.metadata)
    for start in range(0, len(rows), _PLAIN_ROWS):
        yield from rows.slice(start, _PLAIN_ROWS).cast(target).to_batches()


def _with_added(rows: pa.Table) -> pa.Table:
    """Return rows with the columns that their file lacks because it is older."""
    for name, value in ADDED.items():
        if name not in rows.column_names:
            column = pa.repeat(pa.scalar(value, TRIALS.field(name).type), len(rows))
            rows = rows.append_column(TRIALS.field(name), column)
    return rows


class CurvesOnDisk:
    """The rows of a file of CURVES, read whenever they are iterated. Raise Unreadable unless all can be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trial_ids = {each for batch in self for each in batch.column("trial_id").unique().to_pylist()}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with _opened(self._path, CURVES) as file:
            yield from file.iter_batches(_READ_ROWS, columns=CURVES.names, use_threads=False)


def read_curves(path: Path) -> list[pa.RecordBatch]:
    """Return the rows of a file of CURVES. Raise Unreadable if it is not a complete one."""
    with _opened(path, CURVES) as file:
        return list(file.read(CURVES.names).to_batches())


def write(file: IO[bytes], schema: pa.Schema, chunks: Iterable[pa.RecordBatch]) -> None:
    """Write rows as a Parquet file, in groups that are worth compressing however small the chunks are."""
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        held: list[pa.RecordBatch] = []
        for chunk in chain(chunks, [None]):
            held += [] if chunk is None else [chunk]
            if chunk is None or sum(map(len, held)) >= BATCH_ROWS:
                writer.write_table(pa.Table.from_batches(held, schema), row_group_size=2 * BATCH_ROWS)
                held.clear()
    _, footer = _footer(file)
    file.seek(-len(footer), os.SEEK_END)
    file.write(_CHECKSUM + zlib.crc32(footer).to_bytes(4, "little") + footer)


def _footer(file: IO[bytes]) -> tuple[int | None, bytes]:
    """Return the checksum before the footer, None in older files, and the bytes from there to the end of the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _TAIL_BYTES, 0))
    num_bytes = min(int.from_bytes(file.read(4), "little") + _TAIL_BYTES, size)
    start = max(size - num_bytes - len(_CHECKSUM) - 4, 0)
    file.seek(start)
    before, footer = file.read(size - num_bytes - start), file.read(num_bytes)
    return int.from_bytes(before[-4:], "little") if before.startswith(_CHECKSUM) else None, footer


@contextmanager
def _opened(path: Path, schema: pa.Schema, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Yield the open file. Raise HpxferError for another version of `schema`, and Unreadable for anything else.

    The file is read piece by piece, because it may be far larger than the rows that are kept.
    """
    how = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": _BUFFER_BYTES}
    try:
        if not (num_bytes := path.stat().st_size):
            raise Unreadable("an empty file")
        # Arrow takes a name that is no UTF-8 as bytes only.
        with pa.OSFile(os.fsencode(path)) as source:
            checksum, footer = _footer(source)
            if checksum not in (None, zlib.crc32(footer)):
                raise Unreadable("damaged (the checksum of its footer is wrong)")
            file = pq.ParquetFile(source, **how)
            _check_version(path, file.schema_arrow.metadata or {})
            _check_columns(file.schema.to_arrow_schema(), schema)
            if why := why_too_large(file.metadata, schema, num_bytes):
                raise Unreadable(why)
            yield pq.ParquetFile(source, metadata=file.metadata, read_dictionary=list(texts), **how)
    except HpxferError:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise Unreadable(f"not a whole Parquet file ({first_line(error).rstrip('.')})") from None
    except OSError as error:
        # Damage that Arrow finds is an OSError without a number.
        why = f"cannot be read: {error.strerror}" if error.errno else f"damaged ({first_line(error).rstrip('.')})"
        raise Unreadable(why) from None


def _check_version(path: Path, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(VERSION_KEY, b"")
    if not version.isdigit():
        raise Unreadable("a Parquet file that hpxfer did not write")
    if version != str(SCHEMA_VERSION).encode():
        raise HpxferError(
            f"{path}: must have version {SCHEMA_VERSION} of the store's schema, got {cut(version.decode())}; use the "
            "hpxfer that wrote it, or give another folder with --results; nothing was changed"
        )


def _check_columns(found: pa.Schema, schema: pa.Schema) -> None:
    for field in schema:
        index = found.get_field_index(field.name)
        if index < 0 and field.name in ADDED:
            continue
        if index < 0 or found.field(index).type != field.type:
            raise Unreadable(f"has no column {field.name} of type {field.type}")
    if beyond := set(found.names) - set(schema.names):
        raise Unreadable(f"has columns beyond the schema: {', '.join(sorted(beyond))}")


def why_too_large(metadata: pq.FileMetaData, schema: pa.Schema, file_bytes: int) -> str | None:
    """Return why the rows of a file may not be read, by its metadata. None if they may."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    of_trials, of_curves = _FREE_TRIALS + file_bytes // _BYTES_PER_TRIAL, _FREE_POINTS + file_bytes * _POINTS_PER_BYTE
    if rows > (most := of_trials if schema.equals(TRIALS) else of_curves):
        return f"has {rows} rows in {file_bytes} bytes, which hold at most {most} rows of a sweep"
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > _FREE_UNPACKED_BYTES + _MOST_UNPACKED * file_bytes:
        return f"unpacks to {unpacked} bytes from {file_bytes}, which no file of a sweep does"
    return None


def why_too_long(rows: pa.Table) -> str | None:
    """Return why the texts of rows of TRIALS may not be stored, or copied to every row. None if they may.

    The texts are dictionaries.
    """
    total = 0
    for name in rows.column_names:
        field = TRIALS.field(name)
        is_long = name == "error" or field.metadata[b"unit"] == b"JSON"
        most = MOST_TEXT_BYTES if is_long else MOST_NAME_BYTES
        for chunk in rows[name].chunks if field.type == pa.string() else ():
            lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
            if (longest := pc.max(lengths).as_py() or 0) > most:
                return f"column {name} has a text of {longest} bytes, and at most {most} are stored"
            total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if total > MOST_ROW_TEXT_BYTES * len(rows):
        return f"its {len(rows)} rows hold {total} bytes of text, and at most {MOST_ROW_TEXT_BYTES} per row are stored"
    return None


def shortened(error: str) -> str:
    """Return the text of an error, without its middle if it is longer than what is stored."""
    text, head, tail = error.encode(), MOST_ERROR_BYTES // 4, MOST_ERROR_BYTES // 2
    if len(text) <= MOST_ERROR_BYTES:
        return error
    parts = [part.decode(errors="ignore") for part in (text[:head], text[-tail:])]
    return f"\n... {len(text) - head - tail} bytes are left out ...\n".join(parts)
