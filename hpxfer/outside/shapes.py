"""Axes from shape columns: an axis varies one of them, with all others as at the base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hpxfer.errors import HpxferError, shown
from hpxfer.outside.bases import CLOSE, named_sizes
from hpxfer.outside.runs import Read, Run, nearest_of
from hpxfer.verdict.labels import scale_text

Dims = tuple[tuple[str, float], ...]


def with_axes(
    read: Read, runs: Sequence[Run], base: Sequence[str]
) -> tuple[list[Run], tuple[str, ...], tuple[str, ...]]:
    """Return the runs of a table with shape columns on their axes, the axes whose base nobody named, and notes.

    A run at the base is on every axis. A run that differs from the base in two columns is on none, and is left out.
    """
    at_base, is_named = _base(read, runs, base)
    chosen = [read.columns["scale"]] if "scale" in read.columns else list(read.shape)
    out = [
        replace(
            run,
            axis=name,
            scale_name=name,
            scale=dict(run.dims)[name],
            shape=_label(run.dims),
            is_base=run.dims == at_base,
        )
        for name in chosen
        for run in runs
        if all(size == dict(at_base)[other] for other, size in run.dims if other != name)
    ]
    varied = [name for name in chosen if len({run.scale for run in out if run.axis == name}) > 1]
    if not varied:
        raise HpxferError(
            f"{read.where}: columns {', '.join(chosen)}: one must have two sizes or more while all other shape columns "
            f"stay as at the base, {_label(at_base)}, got none; name another base with --base, or fewer shape columns"
        )
    kept = [run for run in out if run.axis in varied]
    off = len({run.row for run in runs} - {run.row for run in kept})
    notes = [f"the base is {_label(at_base)}" + ("" if is_named else ", the smallest shape, as none is named")]
    if off:
        notes.append(f"{off} of {len(runs)} rows are left out: they differ from the base in more than one shape column")
    return kept, () if is_named else tuple(varied), tuple(notes)


def _label(dims: Dims) -> str:
    return " ".join(f"{name}={scale_text(size)}" for name, size in dims)


def _base(read: Read, runs: Sequence[Run], base: Sequence[str]) -> tuple[Dims, bool]:
    """Return the dimensions of the base, and whether the table or the user names it."""
    there = sorted({run.dims for run in runs})
    marked = {run.dims: run for run in runs if run.is_base}
    for run in runs:
        if (other := marked.get(run.dims)) is not None and not run.is_base:
            raise read.fault(run.row, "is_base", f"must be as in row {other.row}, which has the same shape; mend one")
    if not base and len(marked) > 1:
        first, second = list(marked.values())[:2]
        raise read.fault(
            second.row,
            "is_base",
            f"must mark one shape, got {_label(first.dims)} in row {first.row} too; mark one base",
        )
    if not base and marked:
        return next(iter(marked)), True
    sizes = named_sizes(base)
    for name in sizes:
        if name not in read.shape:
            raise HpxferError(f"--base: unknown shape column {shown(name)}; {nearest_of(name, read.shape)}")
    found = [
        dims for dims in there if all(math.isclose(size, sizes.get(name, size), rel_tol=CLOSE) for name, size in dims)
    ]
    if not found:
        raise HpxferError(
            f"{read.where}: --base: must be a shape of the table, got none with {', '.join(base)}; the smallest is "
            f"{_label(there[0])}"
        )
    return found[0], len(found) == 1 and bool(sizes)
