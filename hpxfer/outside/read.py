"""From a file to a frame: CSV with every cell as text, or Parquet. Nothing is guessed about a cell here."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, first_line, shown
from hpxfer.host.files import read_bytes, reason

KINDS = (".csv", ".parquet")
MOST_BYTES = 1 << 30
MARKS = (",", ";", "\t", "|")  # between cells; Excel writes semicolons where commas are decimal marks
_QUOTED = re.compile(r'"[^"]*"')
_NAMES_MARK = re.compile(r"sep=([,;\t|])\r?", re.IGNORECASE)  # the first line of some files of Excel


def read_table(path: str | Path) -> pd.DataFrame:
    """Return the table in a file as a frame. Raise HpxferError if it is none."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise HpxferError(f"{path}: must be a table, {' or '.join(KINDS)}, got {shown(path.suffix)}; name another file")
    try:
        content = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}; name another file") from None
    return _parquet(path, content) if path.suffix.lower() == ".parquet" else _csv(path, content)


def _csv(path: Path, content: bytes) -> pd.DataFrame:
    """Return a CSV file. The first line names the columns. What lies between cells is seen there."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be UTF-8, got byte {error.start} that is not; save it as UTF-8") from None
    first, _, below = text.partition("\n")
    if named := _NAMES_MARK.fullmatch(first):
        mark, text = named[1], below
    else:
        mark = max(MARKS, key=_QUOTED.sub("", first).count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True) if any(row)]
    except csv.Error as error:
        raise HpxferError(f"{path}: must be CSV, got: {error}; quote cells that hold {shown(mark)} or quotes") from None
    if not rows:
        raise HpxferError(f"{path}: must have a line of column names, got an empty file; name another file")
    head = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(head):
            raise HpxferError(
                f"{path}: row {number}: must have a cell for each of the {len(head)} columns, got {len(row)} cells; "
                f"quote cells that hold {shown(mark)}"
            )
    frame = pd.DataFrame(rows[1:], columns=head, dtype=object)
    return frame.loc[:, [bool(name) or bool((cells != "").any()) for name, cells in frame.items()]]


def _parquet(path: Path, content: bytes) -> pd.DataFrame:
    try:
        table = pq.read_table(pa.BufferReader(content))
        cells = {number: pd.Series(column.to_pylist(), dtype=object) for number, column in enumerate(table.columns)}
        return pd.DataFrame(cells, index=range(table.num_rows)).set_axis(table.column_names, axis=1)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise HpxferError(f"{path}: must be a Parquet file, got: {first_line(error)}; write it anew") from None
