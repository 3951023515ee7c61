"""From a file to a frame and back: CSV, read with every cell as text, or Parquet. No cell is guessed about here."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, first_line, shown
from hpxfer.host.files import read_bytes, reason, write_files

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


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table. Raise HpxferError if it cannot be written, or if the file is there already."""
    if path.suffix.lower() not in KINDS:
        raise HpxferError(f"--save-table: must end in {' or '.join(KINDS)}, got {shown(path.name)}; choose one of them")
    if path.exists():
        raise HpxferError(f"{path}: must not be there yet, as it would be overwritten; name another file")
    out = io.BytesIO()
    if path.suffix.lower() == ".csv":
        out.write(frame.to_csv(index=False, lineterminator="\n").encode())
    else:
        frame.apply(_alike).to_parquet(out, index=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: lambda file: file.write(out.getvalue())})
    except OSError as error:
        raise HpxferError(
            f"{path}: cannot be written: {reason(error)}; choose another file with --save-table"
        ) from None


def _alike(values: pd.Series) -> pd.Series:
    """Return a column as Parquet can hold it. A key of a tracker may be a number in one run and text in another."""
    if values.dtype != object or values.dropna().map(type).nunique() < 2:
        return values
    return values.map(str, na_action="ignore")
