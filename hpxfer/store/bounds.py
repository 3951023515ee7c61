"""Bounds: how much memory a file of the store may ask for. A few kilobytes of Parquet can stand for gigabytes.

Compression hides a text that is repeated, and rows that are equal. So the number of rows of a file and the sizes of its
columns, as its footer tells them, are checked before its rows are read, and its texts before they are copied to every
row. What the store writes keeps to the bounds, and so does what it merges.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpxfer.store.schema import TRIALS

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
# How many bytes a file may unpack to: real files unpack to 30 times their size at most.
_FREE_UNPACKED_BYTES = 2**26
_MOST_UNPACKED = 2**10


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
