"""Files of tables: CSV, TSV, Parquet and JSON lines as a frame, and a frame as CSV or Parquet."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, first_line, shown
from hpxfer.host import read_bytes, reason, write_files

KINDS = (".csv", ".tsv", ".parquet", ".jsonl")
MOST_BYTES = 1 << 30
MARKS = (",", ";", "\t", "|")  # between cells; Excel writes semicolons where commas are decimal marks
_QUOTED = re.compile(r'"[^"]*"')
_NAMES_MARK = re.compile(r"sep=([,;\t|])\r?", re.IGNORECASE)  # the first line of some files of Excel


def read_table(path: str | Path) -> pd.DataFrame:
    """Return the table in a file as a frame whose cells are as they are written. Raise HpxferError if it is none."""
    path, kind = Path(path), Path(path).suffix.lower()
    if kind not in KINDS:
        raise HpxferError(f"{path}: must be a table, {', '.join(KINDS)}, got {shown(path.suffix)}")
    try:
        content = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}") from None
    if kind in (".csv", ".tsv"):
        return _cells_of_text(path, content)
    try:
        source = pa.BufferReader(content)
        table = pq.read_table(source) if kind == ".parquet" else pj.read_json(source)
        cells = {number: pd.Series(column.to_pylist(), dtype=object) for number, column in enumerate(table.columns)}
        return pd.DataFrame(cells, index=range(table.num_rows)).set_axis(table.column_names, axis=1)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        what = "a Parquet file" if kind == ".parquet" else "JSON lines"
        raise HpxferError(f"{path}: must be {what}, got: {first_line(error)}") from None


def _cells_of_text(path: Path, content: bytes) -> pd.DataFrame:
    """Return a CSV file, whose first line names the columns and shows what lies between cells.

    The reader of pandas fills short rows, so it would not notice a cell that is not there.
    """
    try:
        text = content.decode("utf-8-sig")
        first, _, below = text.partition("\n")
        if named := _NAMES_MARK.fullmatch(first):
            mark, text = named[1], below
        else:
            mark = max(MARKS, key=_QUOTED.sub("", first).count)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True) if any(row)]
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be UTF-8, got byte {error.start} that is not") from None
    except csv.Error as error:
        raise HpxferError(f"{path}: must be CSV, got: {error}; quote cells that hold {shown(mark)} or quotes") from None
    if not rows:
        raise HpxferError(f"{path}: must have a line of column names, got an empty file")
    head = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(head):
            raise HpxferError(
                f"{path}: row {number}: must have a cell for each of the {len(head)} columns, got {len(row)} cells; "
                f"quote cells that hold {shown(mark)}"
            )
    frame = pd.DataFrame(rows[1:], columns=head, dtype=object)
    return frame.loc[:, [bool(name) or bool((cells != "").any()) for name, cells in frame.items()]]


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV or Parquet. Raise HpxferError if it cannot be written, or if the file is there already."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise HpxferError(f"--save-table: must end in .csv or .parquet, got {shown(path.name)}")
    if path.exists():
        raise HpxferError(f"{path}: must not be there yet, as it would be overwritten")
    out = io.BytesIO()
    if path.suffix.lower() == ".csv":
        out.write(frame.to_csv(index=False, lineterminator="\n").encode())
    else:
        frame.apply(_of_one_type).to_parquet(out, index=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: lambda file: file.write(out.getvalue())})
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {reason(error)}") from None


def _of_one_type(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column as Parquet can hold it. A key of a tracker may be a number in one run and text in another."""
    several = values.dtype == object and values.dropna().map(type).nunique() > 1
    return values.map(str, na_action="ignore") if several else values
