"""What arms are compared with: an arm of the sweep that the user names, and loss curves of the user's own.

A CSV file of curves has the columns name, loss, and step or tokens or both, with a row per point.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import read_text, reason

POSITIONS = ("step", "tokens")
COLUMNS = ("name", *POSITIONS, "loss")
MAX_NAME = 60  # characters, which a legend has room for
LEAST_POINTS = 2


@dataclass(frozen=True, kw_only=True)
class ReferenceCurve:
    """A loss curve from elsewhere. Its points ascend; steps or tokens are empty if the file has none."""

    name: str
    losses: tuple[float, ...]  # nats
    steps: tuple[float, ...] = ()  # done
    tokens: tuple[float, ...] = ()  # seen


@dataclass(frozen=True, kw_only=True)
class References:
    """What the arms of a sweep are compared with. By default the statistic chooses an arm of the sweep."""

    arm: str | None = None  # a shape, a parameterization, or both: `w64`, `sp` or `sp w64`
    curves: tuple[ReferenceCurve, ...] = ()

    @property
    def given(self) -> bool:
        """Whether the user gave any."""
        return self.arm is not None or bool(self.curves)


def read_reference_curves(path: Path) -> tuple[ReferenceCurve, ...]:
    """Return the curves of a CSV file, in the order in which their names appear.

    Raises HpxferError, which names the line and the column, if a value is none that a curve can have.
    """
    try:
        text = read_text(path).removeprefix("\ufeff")
    except OSError as error:
        raise HpxferError(f"{path}: must be a CSV file, cannot be read: {reason(error)}") from None
    except UnicodeDecodeError:
        raise HpxferError(f"{path}: must be UTF-8 text, got other bytes; save it as UTF-8 CSV") from None
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise HpxferError(f"{path}: line {reader.line_num}: must be CSV, got {error}") from None
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    _check_header(path, header)
    points: dict[str, list[dict[str, float]]] = {}
    for line, row in rows[1:]:
        name, point = _point(f"{path}: line {line}", header, row)
        points.setdefault(name, []).append({**point, "line": line})
    if not points:
        raise HpxferError(f"{path}: must hold at least one curve, got a header alone; add rows")
    return tuple(_curve(path, name, found) for name, found in points.items())


def _check_header(path: Path, header: Sequence[str]) -> None:
    where = f"{path}: line 1"
    for column in header:
        if column not in COLUMNS:
            raise HpxferError(f"{where}: column {shown(column)}: unknown; {nearest(column, COLUMNS)}")
        if header.count(column) > 1:
            raise HpxferError(f"{where}: column {column}: must stand once, got it twice; take one out")
    missing = [column for column in ("name", "loss") if column not in header]
    if not any(column in header for column in POSITIONS):
        missing.append("step or tokens")
    if missing:
        got = ", ".join(header) or "an empty file"
        raise HpxferError(f"{where}: must have the columns name, loss, and step or tokens, got {got}; add {missing[0]}")


def _point(where: str, header: Sequence[str], row: Sequence[str]) -> tuple[str, dict[str, float]]:
    """Return the name of a row's curve, and its numbers by column."""
    if len(row) != len(header):
        raise HpxferError(f"{where}: must have {len(header)} values, one per column, got {len(row)}")
    cells = {column: cell.strip() for column, cell in zip(header, row, strict=True)}
    name = cells.pop("name")
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise HpxferError(f"{where}: column name: must have 1 to {MAX_NAME} printable characters, got {shown(name)}")
    return name, {column: _number(f"{where}: column {column}", cell, column) for column, cell in cells.items()}


def _number(where: str, cell: str, column: str) -> float:
    rule = "must be a number > 0, the cross entropy in nats" if column == "loss" else "must be a number >= 0"
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or (value == 0 and column != "loss"))):
        raise HpxferError(f"{where}: {rule}, got {shown(cell)}; correct it, or take the row out")
    return value


def _curve(path: Path, name: str, points: Sequence[Mapping[str, float]]) -> ReferenceCurve:
    """Return a curve without points before the first step: a log axis has no place for 0. Positions must ascend."""
    columns = [column for column in POSITIONS if column in points[0]]
    for before, after in pairwise(points):
        for column in columns:
            if after[column] <= before[column]:
                fix = "keep one of the rows" if after[column] == before[column] else "sort the rows, or correct them"
                raise HpxferError(
                    f"{path}: line {after['line']:.0f}: column {column}: must ascend along the curve {shown(name)}, "
                    f"got {after[column]:g} after {before[column]:g} of line {before['line']:.0f}; {fix}"
                )
    kept = [point for point in points if all(point[column] > 0 for column in columns)]
    if len(kept) < LEAST_POINTS:
        raise HpxferError(
            f"{path}: the curve {shown(name)} must have at least {LEAST_POINTS} points above 0, got {len(kept)}"
        )
    found = {column: tuple(point[column] for point in kept) for column in columns}
    losses = tuple(point["loss"] for point in kept)
    return ReferenceCurve(name=name, losses=losses, steps=found.get("step", ()), tokens=found.get("tokens", ()))
