"""Runs: the rows of a table with their cells read. Every mistake is named by row and column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, cut, joined, nearest, shown
from hpxfer.outside import cells
from hpxfer.outside.columns import STATUSES, columns_of, own_name

TOLERANCE = 0.02  # octaves
NEAR = 0.1  # octaves: no grid is so fine, and two such values are perhaps one


def joined_values(read: Read, tolerance: float = TOLERANCE) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the runs with one value for all that lie within `tolerance` octaves, and what was joined, in words.

    The most frequent spelling stands for all. Raises HpxferError for values that form a chain longer than `tolerance`,
    because nothing says which of them are one.
    """
    if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
        raise HpxferError(f"--tolerance: must be a number of octaves from 0 to below 1, got {tolerance}; 0 joins none")
    of_hp: dict[str, list[Run]] = {}
    for run in read.runs:
        of_hp.setdefault(run.hp, []).append(run)
    stands_for: dict[tuple[str, float], float] = {}
    notes = []
    for hp, runs in of_hp.items():
        counts = Counter(run.value for run in runs)
        groups = _groups(sorted(value for value in counts if value > 0), tolerance)
        for group in groups:
            if math.log2(group[-1] / group[0]) > tolerance:
                raise _chain(read, hp, group, tolerance)
            best = max(group, key=lambda value: (counts[value], -len(repr(value)), -value))
            stands_for |= {(hp, value): best for value in group}
        if len(groups) < (num := sum(value > 0 for value in counts)):
            notes.append(f"{num} spellings of {hp} are {len(groups)} values, within {tolerance:g} octaves each")
        if len(groups) > 2 and all(other[0] - one[0] == 1 for one, other in pairwise(groups)):
            ends = f"{groups[0][0]:g} to {groups[-1][0]:g}"
            notes.append(f"{hp} is {ends} in steps of one; if these are exponents, name the column log2_{hp}")
        for one, other in pairwise(groups):
            if tolerance > 0 and (apart := math.log2(other[0] / one[-1])) < NEAR:
                two = f"{one[-1]:g} and {other[0]:g} are two values of {hp}, {apart:.2g} octaves apart"
                notes.append(f"{two}; if they are one, --tolerance {NEAR:g} joins them")
                break
    joined = tuple(replace(run, value=stands_for.get((run.hp, run.value), run.value)) for run in read.runs)
    return joined, tuple(notes)


def _groups(values: Sequence[float], tolerance: float) -> list[list[float]]:
    """Return ascending values in groups whose neighbors are at most `tolerance` octaves apart."""
    groups: list[list[float]] = []
    for value in values:
        if groups and tolerance > 0 and math.log2(value / groups[-1][-1]) <= tolerance:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups


def _chain(read: Read, hp: str, group: Sequence[float], tolerance: float) -> HpxferError:
    row = next(run.row for run in read.runs if run.hp == hp and run.value == group[1])
    listed = cut(", ".join(f"{value:g}" for value in group))
    return HpxferError(
        f"{place(read.where, row, 'value', read.columns)}: values of {hp} must be one within {tolerance:g} octaves or "
        f"further apart, got the chain {listed}; round them, or give --tolerance 0 if all of them differ"
    )


MOST_SPANS = 12  # of rows that a message names
ONE_ARM = "all runs"  # the arm of a table that names none
EMPTY = ("refuse", "diverged", "missing")
NUMBERS = ("scale", "value", "seed", "loss", "steps")  # the columns that hold numbers
# What mends a cell of a column.
FIXES = {"loss": "write the number", "status": f"write one of {', '.join(STATUSES)}"}
IF_EMPTY = (
    "give --empty diverged if these runs diverged, --empty missing if their loss is not known, and leave out rows of "
    "other metrics"
)
# How trackers, searches and schedulers of clusters say that a run ended -> the status. Optuna's FAIL is no state of
# its own: it also says so of a loss that is NaN.
STATES = {
    **dict.fromkeys(("finished", "complete", "completed", "success", "succeeded", "done", "terminated"), "finished"),
    **dict.fromkeys(("diverged", "nan"), "diverged"),
    **dict.fromkeys(("failed", "crashed", "killed", "error", "cancelled", "canceled", "timeout"), "failed"),
    **dict.fromkeys(("out_of_memory", "node_fail"), "failed"),
    **dict.fromkeys(("running", "pruned", "stopped", "paused", "preempted", "preempting"), "running"),
    **dict.fromkeys(("waiting", "pending", "queued", "scheduled"), "running"),
    "fail": "fail",
}
_NOTHING = ("none", "null", "na", "n/a", "#n/a", "<na>")  # what programs write for a loss that is not there


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
    def may_be_again(self) -> bool:
        """Whether the run has no result and says so, so that it may have been run again."""
        return self.status in ("failed", "running")

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
    own: Mapping[str, Sequence[Any]]  # the table's own columns

    def fault(self, row: int, column: str, what: str) -> HpxferError:
        """Return the error of a cell."""
        return HpxferError(f"{place(self.where, row, column, self.columns)}: {what}")


def place(where: str, row: int, column: str, columns: Mapping[str, str]) -> str:
    """Return the row and the column of a cell as messages name them."""
    own = columns.get(column, column)
    return f"{where}: row {row}, column {own}" + ("" if own == column else f" ({column})")


def read_runs(
    frame: pd.DataFrame,
    *,
    where: str,
    columns: Mapping[str, str] | None = None,
    shape: Sequence[str] = (),
    empty: str = "refuse",
) -> Read:
    """Return the runs of a table. Raise HpxferError that names every cell that breaks a rule.

    `columns` maps a column of `COLUMNS` to the table's own, and `shape` names columns that hold dimensions of a shape.
    `empty` says what an empty loss is in rows that do not say how their run ended: of a run that `diverged`, or that is
    `missing`.
    """
    if empty not in EMPTY:
        raise HpxferError(f"--empty: unknown choice {shown(empty)}; {nearest(empty, EMPTY)}")
    present = [str(name) for name in frame.columns]
    if twice := [name for name in dict.fromkeys(present) if present.count(name) > 1]:
        raise HpxferError(f"{where}: column {shown(twice[0])} must be there once, got it twice; rename one of them")
    own = {name: frame.iloc[:, at].tolist() for at, name in enumerate(present)}
    of, guessed = columns_of(own, columns or {}, shape, where)
    if frame.empty:
        raise HpxferError(f"{where}: must have at least one row below the names of its columns, got none; add the runs")
    numbers = {*(of[name] for name in NUMBERS if name in of), *shape}
    if cells.has_decimal_commas(cell for name in numbers for cell in own[name]):
        own |= {name: list(map(cells.with_point, own[name])) for name in numbers}
    reader = _Reader(where, of, tuple(shape), own, empty)
    runs = tuple(reader.run(at) for at in range(len(frame)))
    if reader.problems:
        raise HpxferError(joined(reader.refusals()))
    return Read(where=where, runs=runs, columns=of, shape=tuple(shape), notes=(*guessed, *reader.notes()), own=own)


class _Reader:
    """Reads row by row, and gathers what is wrong."""

    def __init__(
        self, where: str, of: dict[str, str], shape: tuple[str, ...], own: dict[str, list[Any]], empty: str
    ) -> None:
        self.where, self.of, self.shape, self.own, self.empty = where, of, shape, own, empty
        self.powers: dict[str, tuple[float, str] | None] = {
            name: cells.exponents_of(of[name]) for name in ("scale", "value") if name in of
        }
        names = {name: of[name] if found is None else found[1] for name, found in self.powers.items()}
        self.names = {name: own_name(found) for name, found in names.items()}
        self.problems: dict[tuple[str, str], list[int]] = {}  # column, rule that its cells break -> rows

    def notes(self) -> list[str]:
        """Return what was assumed of columns that are not there."""
        assumed = {
            "arm": "no column names arms: all runs count as one arm",
            "seed": "no column names seeds: all runs count as one seed",
            "status": "no column says how runs ended: those with a loss count as finished, infinite ones as diverged",
            "steps": "no column has steps: that all runs of a shape trained equally long is taken on trust",
        }
        powers = [
            f"column {self.of[name]} holds exponents: {self.names[name]} is {found[0]:g} to their power"
            for name, found in self.powers.items()
            if found is not None
        ]
        return powers + [text for name, text in assumed.items() if name not in self.of]

    def refusals(self) -> Iterator[str]:
        """Yield what is wrong: the first row of each problem, the others, and what mends it."""
        for (column, bad), rows in self.problems.items():
            more = f", as in row{'s' * (len(rows) > 2)} {ranges(rows[1:])}" if len(rows) > 1 else ""
            own = self.of.get(column, column)
            cell = self.own[own][rows[0] - 1]
            fix = IF_EMPTY if column == "loss" and _is_lost(cell) else _fix(column, cell)
            yield f"{place(self.where, rows[0], column, self.of)}: {bad}{more}; {fix}"

    def run(self, at: int) -> Run:
        """Return the run in a row. Cells that cannot be read are in `problems`."""
        loss, status = self._ended(at)
        scale_name = self.names.get("scale", "scale")
        axis = self._read(at, "axis", cells.text, scale_name)
        return Run(
            row=at + 1,
            arm=self._read(at, "arm", cells.text, ONE_ARM),
            hp=self._read(at, "hp", cells.text, self.names["value"]),
            value=self._size(at, "value", cells.not_negative),
            seed=self._read(at, "seed", cells.whole, 0),
            loss=loss,
            status=status,
            dims=tuple((name, self._cell(at, name, name, cells.positive, 1.0)) for name in self.shape),
            axis="" if self.shape else axis,
            scale_name=self._read(at, "scale_name", cells.text, axis),
            scale=0.0 if self.shape else self._size(at, "scale", cells.positive),
            shape=self._read(at, "shape", cells.text, ""),
            is_base=self._read(at, "is_base", cells.flag, None),
            run_id=self._optional(at, "run_id", cells.text),
            steps=self._optional(at, "steps", cells.not_negative),
            loss_name=self._optional(at, "loss_name", cells.text),
            unit=self._optional(at, "unit", cells.text),
        )

    def _ended(self, at: int) -> tuple[float | None, str]:
        """Return the loss and the status. A loss counts only where the run ended."""
        status = self._read(at, "status", _status, "")
        cell = self.own[self.of["loss"]][at]
        is_lost = _is_lost(cell)
        if status in ("failed", "running") or (status == "fail" and not is_lost):
            return None, "failed" if status == "fail" else status
        if status == "diverged" or (is_lost and self.empty == "diverged"):
            return math.inf, "diverged"
        if is_lost:
            if self.empty == "refuse":
                self.problems.setdefault(("loss", str(cells.Bad(LOSS_RULE, None))), []).append(at + 1)
            return None, "missing"
        loss = self._read(at, "loss", _loss, 0.0)
        return loss, "diverged" if loss == math.inf else "finished"

    def _size(self, at: int, column: str, read: Callable[[Any], float]) -> float:
        """Return the HP value or the scale of a row, where its column holds exponents the power."""
        power = self.powers.get(column)

        def of_exponent(cell: Any) -> float:
            assert power is not None
            exponent = cells.finite(cell, "an exponent")
            return read(power[0] ** exponent if abs(exponent) * math.log10(power[0]) < 300 else cell)

        return float(self._read(at, column, read if power is None else of_exponent, 1.0))

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
            self.problems.setdefault((column, str(bad)), []).append(at + 1)
            return otherwise


def _is_lost(cell: Any) -> bool:
    """Return whether the cell of a loss holds none."""
    return cells.is_empty(cell) or (isinstance(cell, str) and cell.strip().lower() in _NOTHING)


def _fix(column: str, cell: Any) -> str:
    """Return what mends a cell that cannot be read."""
    written = str(cell).strip()
    if column == "value" and written.startswith("-"):
        return "write the HP itself; exponents are read from a column whose name says so, such as log2_lr"
    if isinstance(cell, str) and "," in written:
        return "write the number with a point as its decimal mark, and nothing between thousands"
    if isinstance(cell, str) and written.endswith("%"):
        return "write the share, such as 0.01 for 1%"
    return FIXES.get(column, "mend the cell")


def _status(cell: Any) -> str:
    said = "" if cells.is_empty(cell) else str(cell).strip().lower().rpartition(".")[-1]
    if said not in STATES:
        raise cells.Bad(f"one of {', '.join(STATUSES)}", cell)
    return STATES[said]


LOSS_RULE = f"a number from -{cells.LARGEST:g} to {cells.LARGEST:g}, or inf or nan of a run that diverged"


def _loss(cell: Any) -> float:
    """Return a loss; +inf says that the run diverged, and so does the text nan, which no empty cell is written as."""
    if isinstance(cell, str) and cell.strip().lower() == "nan":
        return math.inf
    loss = cells.number(cell, LOSS_RULE)
    if loss != math.inf and not -cells.LARGEST <= loss <= cells.LARGEST:
        raise cells.Bad(LOSS_RULE, cell)
    return loss


def ranges(rows: Sequence[int]) -> str:
    """Return numbers of rows in words, of very many the first ones: `5, 7 to 9`."""
    spans: list[list[int]] = []
    for row in rows:
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    said = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    more = f" and {len(said) - MOST_SPANS} more" if len(said) > MOST_SPANS else ""
    return ", ".join(said[:MOST_SPANS]) + more


def nearest_of(name: str, legal: Sequence[str]) -> str:
    """Return the fix for a name that is not among those of the table."""
    return nearest(name, dict.fromkeys(legal))
