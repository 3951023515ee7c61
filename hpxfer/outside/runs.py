"""The rows of a table as runs, with typed columns. Every mistake is named by row and column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, cut, joined, nearest, shown
from hpxfer.outside import cells
from hpxfer.outside.columns import columns_of, own_name

TOLERANCE = 0.02  # octaves
NEAR = 0.1  # octaves: no grid is so fine, and two such values are perhaps one
MOST_SPANS = 12  # of rows that a message names
EMPTY = ("refuse", "diverged", "missing")
NUMBERS = ("scale", "value", "seed", "loss", "steps")
OPTIONAL = ("run_id", "steps", "loss_name", "unit")  # columns whose cells may be empty
AGAIN = ("failed", "running")  # statuses of runs that may have been run again
# How a cell of each column is read. `loss` and `status` are read together.
READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("axis", "arm", "hp", "scale_name", "shape", "run_id", "loss_name", "unit"), cells.text),
    **dict.fromkeys(("value", "steps"), partial(cells.number, rule=cells.VALUE)),
    "scale": partial(cells.number, rule=cells.SIZE),
    "seed": partial(cells.number, rule=cells.WHOLE),
    "is_base": cells.flag,
    "status": cells.status,
    "loss": partial(cells.number, rule=cells.LOSS),
}
# What is assumed of a column that is not there.
ASSUMED = {
    "arm": "no column names arms: all runs count as one arm",
    "seed": "no column names seeds: all runs count as one seed",
    "status": "no column says how runs ended: those with a loss count as finished, infinite ones as diverged",
    "steps": "no column has steps: that all runs of a shape trained equally long is taken on trust",
}
IF_EMPTY = (
    "; give --empty diverged if these runs diverged, --empty missing if their loss is not known, and leave out rows of "
    "other metrics"
)


@dataclass(frozen=True, kw_only=True)
class Read:
    """The runs of a table, the columns that they were read from, and what was assumed.

    `runs` has a row per run with the columns of `COLUMNS`, those of shape columns, and `row`, which counts from 1 below
    the line of names. A loss is +inf if the run diverged, NaN without a result.
    """

    where: str  # the name of the table in messages
    runs: pd.DataFrame
    columns: Mapping[str, str]  # column -> the table's own
    shape: tuple[str, ...]  # the shape columns
    notes: tuple[str, ...]
    own: Mapping[str, Sequence[Any]]  # the table's own columns
    assumed_bases: tuple[str, ...] = ()  # the axes whose base nobody named

    def fault(self, row: int, column: str, what: str) -> HpxferError:
        """Return the error of a cell."""
        own = self.columns.get(column, column)
        name = own if own == column else f"{own} ({column})"
        return HpxferError(f"{self.where}: row {row}, column {name}: {what}")

    def then(self, runs: pd.DataFrame, notes: Sequence[str], **more: Any) -> Read:
        """Return other runs of the table, with what was said before and `notes`."""
        return replace(self, runs=runs, notes=(*self.notes, *notes), **more)


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
    if twice := [name for name, times in Counter(present).items() if times > 1]:
        untitled = "its first line must name the columns, got two without a name"
        once = f"column {shown(twice[0])} must be there once, got it twice"
        raise HpxferError(f"{where}: {once if twice[0] else untitled}")
    own: dict[str, Sequence[Any]] = {name: frame.iloc[:, at].tolist() for at, name in enumerate(present)}
    of, notes = columns_of(own, columns or {}, shape, where)
    if frame.empty:
        raise HpxferError(f"{where}: must have at least one row below the names of its columns, got none")
    own |= cells.with_points({name: own[name] for name in (*(of[name] for name in NUMBERS if name in of), *shape)})
    names, powers = dict[str, str](), dict[str, float]()  # of the scale and the value
    for column in ("scale", "value"):
        if column in of:
            base, named = cells.exponents_of(of[column]) or (None, of[column])
            names[column] = own_name(named)
            if base is not None:
                powers[column] = base
                notes += (f"column {of[column]} holds exponents: {names[column]} is {base:g} to their power",)
    wrong: dict[tuple[str, str], list[int]] = {}  # column, rule that its cells break -> rows

    def values(column: str, otherwise: object = None) -> list[Any]:
        """Return the values of a column; all are `otherwise` if it is not there."""
        if column not in of:
            return [otherwise] * len(frame)
        return [value(column, row, cell) for row, cell in enumerate(own[of[column]], 1)]

    def value(column: str, row: int, cell: Any, *, is_size: bool = False) -> Any:
        """Return the value of a cell. One that breaks a rule goes to `wrong`."""
        try:
            if is_size:  # of a shape column, which may have the name of another column
                return READERS["scale"](cell)
            if column in OPTIONAL and cells.is_empty(cell):
                return None
            if column in powers:
                cell = powers[column] ** max(-300.0, min(300.0, cells.number(cell, cells.EXPONENT)))
            return READERS[column](cell)
        except cells.Bad as bad:
            wrong.setdefault((column, str(bad)), []).append(row)
            return 1.0

    def ended(row: int, status: str) -> tuple[float, str]:
        """Return the loss and the status of a row. A loss counts only where the run ended."""
        cell = own[of["loss"]][row - 1]
        is_lost = cells.is_lost(cell)
        if status in AGAIN or (status == "fail" and not is_lost):
            return math.nan, "failed" if status == "fail" else status
        if status == "diverged" or (is_lost and empty == "diverged"):
            return math.inf, "diverged"
        if is_lost and empty == "missing":
            return math.nan, "missing"
        loss = value("loss", row, None if is_lost else cell)
        return loss, "diverged" if loss == math.inf else "finished"

    rows = range(1, len(frame) + 1)
    losses, statuses = zip(*map(ended, rows, values("status", "")), strict=True)
    axis = [""] * len(frame) if shape else values("axis", names.get("scale"))
    dims = [[value(name, row, cell, is_size=True) for row, cell in enumerate(own[name], 1)] for name in shape]
    runs = pd.DataFrame(
        {
            "row": rows,
            "loss": losses,
            "status": statuses,
            "axis": axis,
            "arm": values("arm", "all runs"),
            "hp": values("hp", names["value"]),
            "value": values("value"),
            "seed": values("seed", 0),
            "dims": list(zip(*dims, strict=True)) if shape else None,
            "scale_name": values("scale_name") if "scale_name" in of else axis,
            "scale": 0.0 if shape else values("scale"),
            "shape": values("shape", ""),
            "is_base": values("is_base", False),
            **{name: values(name) for name in OPTIONAL},
        },
        dtype=object,
    ).astype({"row": int, "loss": float, "value": float, "seed": int, "scale": float, "steps": float})
    notes += tuple(text for name, text in ASSUMED.items() if name not in of)
    read = Read(where=where, runs=runs, columns=of, shape=tuple(shape), notes=notes, own=own)
    if wrong:
        problems = sorted(wrong.items(), key=lambda item: item[1][0])
        raise HpxferError(joined(_refusal(read, column, bad, at) for (column, bad), at in problems))
    return read


def _refusal(read: Read, column: str, bad: str, rows: Sequence[int]) -> str:
    more = f", as in row{'s' * (len(rows) > 2)} {ranges(rows[1:])}" if len(rows) > 1 else ""
    is_lost = column == "loss" and cells.is_lost(read.own[read.columns["loss"]][rows[0] - 1])
    return str(read.fault(rows[0], column, f"{bad}{more}{IF_EMPTY if is_lost else ''}"))


def ranges(rows: Sequence[int]) -> str:
    """Return numbers of rows in words, of very many the first ones: `5, 7 to 9`."""
    numbers = pd.Series(rows, dtype=int)
    spans = numbers.groupby(numbers - numbers.index).agg(["first", "last"]).itertuples(index=False)
    said = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    more = f" and {len(said) - MOST_SPANS} more" if len(said) > MOST_SPANS else ""
    return ", ".join(said[:MOST_SPANS]) + more


def join_values(read: Read, tolerance: float = TOLERANCE) -> Read:
    """Return the runs with one value for all that lie within `tolerance` octaves.

    The most frequent spelling stands for all. Raises HpxferError for values that form a chain longer than `tolerance`,
    because nothing says which of them are one.
    """
    if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
        raise HpxferError(f"--tolerance: must be a number of octaves from 0 to below 1, got {tolerance}; 0 joins none")
    runs, notes = read.runs.copy(), list[str]()
    for hp, own in read.runs.groupby("hp", sort=False):
        counts = own.loc[own["value"] > 0, "value"].value_counts().sort_index()
        apart = [math.log2(high / low) for low, high in pairwise(counts.index)]
        group_of = pd.Series([0, *(octaves > tolerance or not tolerance for octaves in apart)][: len(counts)]).cumsum()
        groups = [counts.iloc[at] for at in group_of.groupby(group_of).groups.values()]
        for group in groups:
            if math.log2(group.index[-1] / group.index[0]) > tolerance:
                chain = cut(", ".join(f"{value:g}" for value in group.index))
                raise read.fault(
                    own.loc[own["value"] == group.index[1], "row"].iloc[0],
                    "value",
                    f"values of {hp} must be one within {tolerance:g} octaves or further apart, got the chain {chain}; "
                    "round them, or give --tolerance 0 if all of them differ",
                )
            best = max(group.index, key=lambda value: (group[value], -len(repr(value)), -value))
            runs.loc[own.index[own["value"].isin(group.index)], "value"] = best
        if len(groups) < len(counts):
            notes.append(f"{len(counts)} spellings of {hp} are {len(groups)} values, within {tolerance:g} octaves each")
        firsts, lasts = [group.index[0] for group in groups], [group.index[-1] for group in groups]
        steps = [high - low for low, high in pairwise(firsts)]
        if len(groups) > 2 and firsts[-1] > 1 and all(math.isclose(step, steps[0], rel_tol=0.05) for step in steps):
            ends = f"{firsts[0]:g} to {firsts[-1]:g} in steps of {steps[0]:.3g}"
            notes.append(f"{hp} is {ends}; if these are exponents, name the column log2_{hp} or log10_{hp}")
        near = ((low, high) for low, high in zip(lasts, firsts[1:], strict=False) if math.log2(high / low) < NEAR)
        if tolerance > 0 and (pair := next(near, None)):
            octaves = f"{math.log2(pair[1] / pair[0]):.2g} octaves apart"
            joins = f"if they are one, --tolerance {NEAR:g} joins them"
            notes.append(f"{pair[0]:g} and {pair[1]:g} are two values of {hp}, {octaves}; {joins}")
    return read.then(runs, notes)
