"""A table as a file: CSV or Parquet, by the end of its name."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import reason, write_files
from hpxfer.outside.read import KINDS


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
