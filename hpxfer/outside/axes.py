"""The axes of a table, and the base of each: marked by rows, named by the user, or the smallest shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import scale_text, shape_label
from hpxfer.outside import cells
from hpxfer.outside.runs import Read

CLOSE = 1e-9  # relative difference of scales that count as one


def place(read: Read, base: Sequence[str]) -> Read:
    """Return runs on their axes with each base marked. `base` holds NAME=SIZE each."""
    sizes = {}
    for one in base:
        name, equals, size = (part.strip() for part in one.partition("="))
        if not (equals and name):
            raise HpxferError(f"--base: must be NAME=SIZE, got {shown(one)}; e.g. --base scale=64")
        try:
            sizes[name] = cells.number(size, cells.SIZE)
        except cells.Bad as bad:
            raise HpxferError(f"--base: {name}: {bad}; e.g. --base scale=64") from None
    if read.shape:
        return _of_shape_columns(read, sizes)
    _check_names("axis or scale", sizes, ["scale", *read.runs["axis"], *read.runs["scale_name"]])
    parts, assumed, notes = [], list[str](), list[str]()
    for key, own in read.runs.groupby("axis", sort=False):
        axis = str(key)
        scale_name = own["scale_name"].iloc[0]
        if (odd := own[own["scale_name"] != scale_name]["row"]).size:
            got = (
                f"got {shown(own.at[odd.index[0], 'scale_name'])} and, in row {own['row'].iloc[0]}, {shown(scale_name)}"
            )
            raise read.fault(odd.iloc[0], "scale_name", f"must be the same along axis {shown(axis)}, {got}")
        points = pd.Series(list(zip(own["scale"], own["shape"], strict=True)), own.index)
        named = next((sizes[name] for name in (axis, scale_name, "scale") if name in sizes), None)
        if named is not None:
            at = sorted({point for point in points if math.isclose(point[0], named, rel_tol=CLOSE)})
            if len(at) != 1:
                got = f"{len(at)} shapes of that scale" if at else f"no shape at {scale_name} {scale_text(named)}"
                raise HpxferError(
                    f"{read.where}: --base: must name one shape of axis {shown(axis)}, got {got}; the scales are "
                    + ", ".join(map(scale_text, sorted(set(own["scale"]))))
                )
            found = at[0]
        elif (found := _marked(read, own, points, partial(_scale_label, scale_name))) is None:
            found, smallest = min(points), scale_text(own["scale"].min())
            assumed.append(axis)
            notes.append(
                f"axis {axis}: no base is marked, so the smallest scale is taken, {scale_name} {smallest}; "
                f"name it with --base {axis}={smallest}"
            )
        parts.append(own.assign(is_base=points == found))
    return read.then(pd.concat(parts).sort_index(), notes, assumed_bases=tuple(assumed))


def _scale_label(scale_name: str, point: Any) -> str:
    return shape_label(scale_name, point[0])


def _of_shape_columns(read: Read, sizes: dict[str, float]) -> Read:
    """A run at the base is on every axis. A run that differs from it in two columns is on none, and is left out."""

    def label(point: Any) -> str:
        return " ".join(f"{name}={scale_text(size)}" for name, size in zip(read.shape, point, strict=True))

    runs, is_named = read.runs, True
    base = None if sizes else _marked(read, runs, runs["dims"], label)
    if base is None:
        _check_names("shape column", sizes, read.shape)
        wanted = [(read.shape.index(name), size) for name, size in sizes.items()]
        there = sorted(set(runs["dims"]))
        fits = [dims for dims in there if all(math.isclose(dims[at], size, rel_tol=CLOSE) for at, size in wanted)]
        if not fits:
            given = ", ".join(f"{name}={scale_text(size)}" for name, size in sizes.items())
            raise HpxferError(
                f"{read.where}: --base: must be a shape of the table, got none with {given}; the smallest is "
                f"{label(there[0])}"
            )
        base, is_named = fits[0], len(fits) == 1 and bool(sizes)
    chosen = [read.columns["scale"]] if "scale" in read.columns else list(read.shape)
    parts = []
    for name in chosen:
        at = read.shape.index(name)
        own = runs[[(*dims[:at], *dims[at + 1 :]) == (*base[:at], *base[at + 1 :]) for dims in runs["dims"]]]
        scale = own["dims"].str[at].astype(float)
        if scale.nunique() > 1:
            own = own.assign(axis=name, scale_name=name, scale=scale, shape=own["dims"].map(label))
            parts.append(own.assign(is_base=own["dims"] == base))
    if not parts:
        raise HpxferError(
            f"{read.where}: columns {', '.join(chosen)}: one must have two sizes or more while all other shape columns "
            f"stay as at the base, {label(base)}, got none"
        )
    kept = pd.concat(parts, ignore_index=True)
    notes = [f"the base is {label(base)}" + ("" if is_named else ", the smallest shape, as none is named")]
    if off := len(runs) - kept["row"].nunique():
        notes.append(f"{off} of {len(runs)} rows are left out: they differ from the base in more than one shape column")
    return read.then(kept, notes, assumed_bases=() if is_named else tuple(kept["axis"].unique()))


def _check_names(what: str, sizes: dict[str, float], legal: Sequence[str]) -> None:
    for name in sizes:
        if name not in legal:
            raise HpxferError(f"--base: unknown {what} {shown(name)}; {nearest(name, dict.fromkeys(legal))}")


def _marked(read: Read, runs: pd.DataFrame, points: pd.Series[Any], label: Callable[[Any], str]) -> Any:
    """Return the shape that rows mark as the base; None if they mark none."""
    first: dict[Any, tuple[int, bool]] = {}  # shape -> its first row, and whether that marks it
    for point, row, is_base in zip(points, runs["row"], runs["is_base"], strict=True):
        before, is_marked = first.setdefault(point, (row, is_base))
        if is_marked != is_base:
            raise read.fault(row, "is_base", f"must be as in row {before}, which has the same shape")
    marked = {point: row for point, (row, is_base) in first.items() if is_base}
    if len(marked) > 1:
        one, other = list(marked)[:2]
        raise read.fault(marked[other], "is_base", f"must mark one base, got {label(one)} in row {marked[one]} too")
    return next(iter(marked), None)
