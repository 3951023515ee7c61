"""Runs: the rows of a table with their cells read. Every mistake is named by row and column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, joined, nearest, shown
from hpxfer.outside import cells
from hpxfer.outside.columns import STATUSES, columns_of

ONE_ARM = "all runs"  # the arm of a table that names none
# What mends a cell of a column.
FIXES = {
    "loss": "write the number, or leave it empty in a row whose status is not finished",
    "status": f"write one of {', '.join(STATUSES)}",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row. `row` counts from 1 below the line of names. A loss is +inf if the run diverged, None without one."""

    row: int
    arm: str
    hp: str
    value: float
    seed: int
    loss: float | None
    status: str
    dims: tuple[tuple[str, float], ...] = ()  # of a table with shape columns, by their names
    axis: str = ""
    scale_name: str = ""
    scale: float = 0.0
    shape: str = ""
    is_base: bool | None = None  # None: the table does not say
    run_id: str | None = None
    steps: float | None = None
    loss_name: str | None = None
    unit: str | None = None

    @property
    def has_result(self) -> bool:
        """Whether the run finished, or diverged."""
        return self.loss is not None

    @property
    def cell(self) -> tuple[object, ...]:
        """What no two runs with a result may share."""
        return self.arm, self.axis, self.scale, self.shape, self.hp, self.value, self.seed


@dataclass(frozen=True, kw_only=True)
class Read:
    """The runs of a table, the columns that they were read from, and what was assumed."""

    where: str  # the name of the table in messages
    runs: tuple[Run, ...]
    columns: Mapping[str, str]  # column -> the table's own
    shape: tuple[str, ...]  # the shape columns
    notes: tuple[str, ...]

    def fault(self, row: int, column: str, what: str) -> HpxferError:
        """Return the error of a cell."""
        return HpxferError(f"{place(self.where, row, column, self.columns)}: {what}")


def place(where: str, row: int, column: str, columns: Mapping[str, str]) -> str:
    """Return the row and the column of a cell as messages name them."""
    own = columns.get(column, column)
    return f"{where}: row {row}, column {own}" + ("" if own == column else f" ({column})")


def read_runs(
    frame: pd.DataFrame, *, where: str, columns: Mapping[str, str] | None = None, shape: Sequence[str] = ()
) -> Read:
    """Return the runs of a table. Raise HpxferError that names every cell that breaks a rule.

    `columns` maps a column of `COLUMNS` to the table's own, and `shape` names columns that hold dimensions of a shape.
    """
    present = [str(name) for name in frame.columns]
    if twice := [name for name in dict.fromkeys(present) if present.count(name) > 1]:
        raise HpxferError(f"{where}: column {shown(twice[0])} must be there once, got it twice; rename one of them")
    of = columns_of(present, columns or {}, shape, where)
    if frame.empty:
        raise HpxferError(f"{where}: must have at least one row below the names of its columns, got none; add the runs")
    reader = _Reader(where, of, tuple(shape), {name: frame.iloc[:, at].tolist() for at, name in enumerate(present)})
    runs = tuple(reader.run(at) for at in range(len(frame)))
    if reader.problems:
        raise HpxferError(joined(reader.problems))
    return Read(where=where, runs=runs, columns=of, shape=tuple(shape), notes=tuple(reader.notes()))


class _Reader:
    """Reads row by row, and gathers what is wrong."""

    def __init__(self, where: str, of: dict[str, str], shape: tuple[str, ...], own: dict[str, list[Any]]) -> None:
        self.where, self.of, self.shape, self.own = where, of, shape, own
        self.problems: list[str] = []

    def notes(self) -> list[str]:
        """Return what was assumed of columns that are not there."""
        assumed = {
            "arm": "no column names arms: all runs count as one arm",
            "seed": "no column names seeds: all runs count as one seed",
            "status": "no column says how runs ended: those with a loss count as finished, infinite ones as diverged",
            "steps": "no column has steps: that all runs of a shape trained equally long is taken on trust",
        }
        return [text for name, text in assumed.items() if name not in self.of]

    def run(self, at: int) -> Run:
        """Return the run in a row. Cells that cannot be read are in `problems`."""
        loss, status = self._ended(at)
        scale_name = self.of.get("scale", "scale")
        axis = self._read(at, "axis", cells.text, scale_name)
        return Run(
            row=at + 1,
            arm=self._read(at, "arm", cells.text, ONE_ARM),
            hp=self._read(at, "hp", cells.text, self.of["value"]),
            value=self._read(at, "value", cells.not_negative, 1.0),
            seed=self._read(at, "seed", cells.whole, 0),
            loss=loss,
            status=status,
            dims=tuple((name, self._cell(at, name, name, cells.positive, 1.0)) for name in self.shape),
            axis="" if self.shape else axis,
            scale_name=self._read(at, "scale_name", cells.text, axis),
            scale=0.0 if self.shape else self._read(at, "scale", cells.positive, 1.0),
            shape=self._read(at, "shape", cells.text, ""),
            is_base=self._read(at, "is_base", cells.flag, None),
            run_id=self._optional(at, "run_id", cells.text),
            steps=self._optional(at, "steps", cells.positive),
            loss_name=self._optional(at, "loss_name", cells.text),
            unit=self._optional(at, "unit", cells.text),
        )

    def _ended(self, at: int) -> tuple[float | None, str]:
        """Return the loss and the status. A loss counts only where the run ended."""
        status = self._read(at, "status", _status, "")
        cell = self.own[self.of["loss"]][at]
        if status in ("failed", "running"):
            return None, status
        if status == "diverged":
            return math.inf, status
        if not status and cells.is_empty(cell):
            return None, "running"
        loss = self._read(at, "loss", _loss, 0.0)
        return loss, "diverged" if loss == math.inf else "finished"

    def _optional(self, at: int, column: str, read: Callable[[Any], Any]) -> Any:
        """Return the value of a cell that may be empty."""
        if column in self.of and cells.is_empty(self.own[self.of[column]][at]):
            return None
        return self._read(at, column, read, None)

    def _read(self, at: int, column: str, read: Callable[[Any], Any], otherwise: Any) -> Any:
        """Return the value of a cell, or `otherwise` of a column that is not there."""
        return self._cell(at, column, self.of[column], read, otherwise) if column in self.of else otherwise

    def _cell(self, at: int, column: str, own: str, read: Callable[[Any], Any], otherwise: Any) -> Any:
        try:
            return read(self.own[own][at])
        except cells.Bad as bad:
            fix = FIXES.get(column, "mend the cell")
            self.problems.append(f"{place(self.where, at + 1, column, self.of)}: {bad}; {fix}")
            return otherwise


def _status(cell: Any) -> str:
    said = "" if cells.is_empty(cell) else str(cell).strip().lower()
    if said not in STATUSES:
        raise cells.Bad(f"one of {', '.join(STATUSES)}", cell)
    return said


def _loss(cell: Any) -> float:
    """Return a loss; +inf says that the run diverged, and so does the text nan, which no empty cell is written as."""
    if isinstance(cell, str) and cell.strip().lower() == "nan":
        return math.inf
    rule = f"a number from -{cells.LARGEST:g} to {cells.LARGEST:g}, or inf or nan of a run that diverged"
    loss = cells.number(cell, rule)
    if loss != math.inf and not -cells.LARGEST <= loss <= cells.LARGEST:
        raise cells.Bad(rule, cell)
    return loss


def nearest_of(name: str, legal: Sequence[str]) -> str:
    """Return the fix for a name that is not among those of the table."""
    return nearest(name, dict.fromkeys(legal))
