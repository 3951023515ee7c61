"""The base of each axis of a table, and the axes that columns of dimensions make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hpxfer.errors import HpxferError, shown
from hpxfer.outside.cells import Bad, positive
from hpxfer.outside.runs import Read, Run, nearest_of
from hpxfer.verdict.shape_names import scale_text, shape_label

CLOSE = 1e-9  # relative difference of scales that count as one


def named_sizes(spelled: Sequence[str]) -> dict[str, float]:
    """Return name -> size of what `--base NAME=SIZE` gives. Raise HpxferError if one cannot be read."""
    out = {}
    for one in spelled:
        name, equals, size = one.partition("=")
        if not (equals and name.strip()):
            raise HpxferError(f"--base: must be NAME=SIZE, got {shown(one)}; e.g. --base scale=64")
        try:
            out[name.strip()] = positive(size)
        except Bad as bad:
            raise HpxferError(f"--base: {name.strip()}: {bad}; e.g. --base scale=64") from None
    return out


def with_bases(read: Read, runs: Sequence[Run], base: Sequence[str]) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs of a table with axes, each with its base marked, and the axes whose base nobody named."""
    sizes = named_sizes(base)
    axes: dict[str, list[Run]] = {}
    for run in runs:
        axes.setdefault(run.axis, []).append(run)
    scale_name_of = {axis: _one_name(read, own) for axis, own in axes.items()}
    legal = ["scale", *axes, *scale_name_of.values()]
    for name in sizes:
        if name not in legal:
            raise HpxferError(f"--base: unknown axis or scale {shown(name)}; {nearest_of(name, legal)}")
    base_of: dict[str, tuple[float, str]] = {}
    assumed = []
    for axis, own in axes.items():
        given = next((sizes[name] for name in (axis, scale_name_of[axis], "scale") if name in sizes), None)
        found = _marked(read, own) if given is None else _at(read, own, given, scale_name_of[axis])
        if found is None:
            found = min((run.scale, run.shape) for run in own)
            assumed.append(axis)
        base_of[axis] = found
    return [replace(run, is_base=(run.scale, run.shape) == base_of[run.axis]) for run in runs], tuple(assumed)


def _one_name(read: Read, runs: Sequence[Run]) -> str:
    """Return what the scale of an axis counts. Raise HpxferError if its rows differ in that."""
    first = runs[0]
    for run in runs:
        if run.scale_name != first.scale_name:
            raise read.fault(
                run.row,
                "scale_name",
                f"must be the same along axis {shown(run.axis)}, got {shown(run.scale_name)} and, in row {first.row}, "
                f"{shown(first.scale_name)}; one axis has one scale",
            )
    return first.scale_name


def _marked(read: Read, runs: Sequence[Run]) -> tuple[float, str] | None:
    """Return the scale and shape that the rows of an axis mark as its base; None if they mark none."""
    said: dict[tuple[float, str], Run] = {}
    for run in runs:
        before = said.setdefault((run.scale, run.shape), run)
        if before.is_base != run.is_base:
            raise read.fault(
                run.row, "is_base", f"must be as in row {before.row}, which has the same shape; mend one of the two"
            )
    marked = [(key, run) for key, run in said.items() if run.is_base]
    if len(marked) > 1:
        (_, first), (_, second) = marked[:2]
        raise read.fault(
            second.row,
            "is_base",
            f"must mark one base of axis {shown(second.axis)}, got {shape_label(first.scale_name, first.scale)} in "
            f"row {first.row} too; unmark one",
        )
    return marked[0][0] if marked else None


def _at(read: Read, runs: Sequence[Run], size: float, scale_name: str) -> tuple[float, str]:
    """Return the shape of an axis at the scale that the user names as the base."""
    there = sorted({(run.scale, run.shape) for run in runs})
    found = [key for key in there if math.isclose(key[0], size, rel_tol=CLOSE)]
    if len(found) == 1:
        return found[0]
    scales = ", ".join(dict.fromkeys(scale_text(scale) for scale, _ in there))
    got = f"{len(found)} shapes of that scale" if found else f"no shape at {scale_name} {scale_text(size)}"
    raise HpxferError(
        f"{read.where}: --base: must name one shape of axis {shown(runs[0].axis)}, got {got}; the scales are {scales}"
    )


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
