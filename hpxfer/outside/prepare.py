"""From a frame to the runs that are judged: read, joined, placed on their axes, and checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from hpxfer.errors import shown
from hpxfer.outside.bases import with_bases
from hpxfer.outside.checks import check_alike, check_scales, without_duplicates, without_result
from hpxfer.outside.joined import TOLERANCE, joined_values
from hpxfer.outside.runs import Read, Run, read_runs
from hpxfer.outside.shapes import with_axes
from hpxfer.verdict.labels import scale_text

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
