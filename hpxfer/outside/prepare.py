"""From a file or a frame to the runs that are judged: read, joined, placed on their axes, and checked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.errors import HpxferError, first_line, shown
from hpxfer.host.files import read_bytes, reason, write_files
from hpxfer.outside.bases import with_axes, with_bases
from hpxfer.outside.checks import check_alike, check_scales, without_duplicates, without_result
from hpxfer.outside.runs import TOLERANCE, Read, Run, joined_values, read_runs
from hpxfer.verdict.shape_names import scale_text

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


_UNFIT = re.compile(r"[^\w.+-]+")  # what no file name of a figure has


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The runs of a table, each on its axis, with one base per axis."""

    read: Read
    runs: tuple[Run, ...]
    assumed_bases: tuple[str, ...]  # the axes whose base nobody named
    notes: tuple[str, ...]


def prepare(
    frame: pd.DataFrame,
    *,
    where: str,
    columns: Mapping[str, str] | None = None,
    shape: Sequence[str] = (),
    base: Sequence[str] = (),
    duplicates: str = "refuse",
    empty: str = "refuse",
    tolerance: float = TOLERANCE,
) -> Prepared:
    """Return the runs of a table as `hpxfer.judge` judges them. Raise HpxferError that names what is wrong."""
    read = read_runs(frame, where=where, columns=columns, shape=shape, empty=empty)
    joined, of_values = joined_values(read, tolerance)
    if read.shape:
        placed, assumed, of_axes = with_axes(read, joined, base)
    else:
        placed, assumed = with_bases(read, joined, base)
        of_axes = tuple(_assumed_text(placed, axis) for axis in assumed)
    runs, of_duplicates = without_duplicates(read, placed, duplicates)
    check_alike(read, runs)
    check_scales(read, runs)
    _check_files(read, runs)
    notes = (*read.notes, *of_values, *of_axes, *without_result(runs), *of_duplicates)
    return Prepared(read=read, runs=tuple(runs), assumed_bases=assumed, notes=notes)


def _assumed_text(runs: Sequence[Run], axis: str) -> str:
    base = next(run for run in runs if run.axis == axis and run.is_base)
    return (
        f"axis {axis}: no base is marked, so the smallest scale is taken, {base.scale_name} {scale_text(base.scale)}; "
        f"name it with --base {axis}={scale_text(base.scale)}"
    )


def _check_files(read: Read, runs: Sequence[Run]) -> None:
    """Raise HpxferError for two axes or HPs whose figures would have one file name."""
    for column in ("axis", "hp"):
        seen: dict[str, str] = {}
        for run in runs:
            name = getattr(run, column)
            if seen.setdefault(_UNFIT.sub("_", name), name) != name:
                other = seen[_UNFIT.sub("_", name)]
                raise read.fault(
                    run.row,
                    column,
                    f"must differ from others in a letter or digit, got {shown(name)} and {shown(other)}",
                )
