"""What no verdict may rest on: two results of one seed, mixed steps, mixed losses, and a single scale.

`odd` names what may be a slip: names and numbers that few rows have.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import scale_text, shape_label
from hpxfer.outside.cells import SIZE, Bad, is_empty, number
from hpxfer.outside.runs import AGAIN, Read, ranges

DUPLICATES = ("refuse", "last")
CELL = ["arm", "axis", "scale", "shape", "hp", "value", "seed"]  # what no two runs with a result may share
_STEPS = ("step", "_step", "global_step", "steps", "iteration", "iter", "training_iteration", "epoch")
FEW = 8  # a name or number is odd if others have so many times as many rows
FAR = 2.5  # octaves: an HP value so far from all others is odd if the others have more rows
ALIKE = 0.8  # difflib's ratio of two names that may be one
MOST_ODD = 12  # names and numbers that are named
_UNFIT = re.compile(r"[^\w.+-]+")  # what no file name of a figure has


def without_duplicates(read: Read, duplicates: str) -> Read:
    """Return one run per cell and seed, in the order of the rows.

    `last` keeps the last row, with a result or not. `refuse` raises HpxferError for two rows, unless one of them says
    that its run failed or runs: then the other one counts.
    """
    if duplicates not in DUPLICATES:
        raise HpxferError(f"--duplicates: unknown choice {shown(duplicates)}; {nearest(duplicates, DUPLICATES)}")
    runs = read.runs
    again = runs["status"].isin(AGAIN) & (duplicates == "refuse")
    kept = runs.loc[again.sort_values(ascending=False, kind="stable").index].drop_duplicates(CELL, keep="last")
    kept = kept.sort_index().reset_index(drop=True)
    sure = runs[~again]
    before = sure.groupby(CELL)["row"].shift().dropna().astype(int)
    pairs = list(zip(before, sure.loc[before.index, "row"], strict=True))
    rows = runs.drop_duplicates("row").set_index("row").sort_index()
    lost = kept[kept["loss"].isna()].drop_duplicates("row").sort_values("row")
    notes = []
    if len(lost):
        listed = ", ".join(f"{num} {status}" for status, num in sorted(Counter(lost["status"]).items()))
        num = kept["row"].nunique()
        notes.append(f"{len(lost)} of {num} runs have no result ({listed}): rows {ranges(lost['row'].tolist())}")
    if pairs:
        differ = _differing(read, pairs)
        counter = _steps_column(differ)
        if duplicates == "refuse":
            other, row = pairs[0]
            here, there = ("none" if loss != loss else f"{loss:g}" for loss in rows.loc[[row, other], "loss"])
            why = f"the rows differ in {', '.join(differ)}: map what that is" if differ else "give them seeds"
            keep = "keep the last with --duplicates last" + (f" --map steps={counter}" if counter else "")
            got = f"got {here} here and {there} in row {other}; {why}, or {keep}"
            raise read.fault(row, "loss", f"one HP value, shape, arm and seed must have one result, {got}")
        steps = rows["steps"]
        if counter:
            counted = pd.to_numeric(pd.Series(read.own[counter]), errors="coerce")
            steps = steps.fillna(counted.set_axis(range(1, len(counted) + 1)))
        for other, row in pairs:
            if steps[other] > steps[row]:
                got = f"got step {steps[row]:g} here and {steps[other]:g} in row {other}"
                raise read.fault(row, "loss", f"the last row of a run must be that of its last step, {got}")
        why = f"; they differ in {', '.join(differ)}" if differ else ""
        same = "as a later row has the same HP value, shape, arm and seed"
        notes.append(f"{len(pairs)} results are left out, {same}{why}")
    elif dropped := len(runs) - len(kept):
        notes.append(f"{dropped} runs without a result are left out, as another row has the same place")
    return read.then(kept, notes)


def _differing(read: Read, pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Return the columns of a table that nothing was read from and that differ between rows of one run.

    Columns whose values hardly repeat are measured numbers and do not count.
    """
    out, used = [], {*read.columns.values(), *read.shape}
    for name, cells in read.own.items():
        levels = list(map(_level, cells)) if name not in used else []
        if levels and 2 * len(set(levels)) <= len(levels):
            out += [name] if all(levels[one - 1] != levels[other - 1] for one, other in pairs) else []
    return out


def _level(cell: Any) -> object:
    try:
        return "" if is_empty(cell) else number(cell, SIZE)
    except Bad:
        return str(cell).strip()


def _steps_column(names: Sequence[str]) -> str | None:
    """Return which of some columns counts steps, else epochs; None if none does."""
    last = {re.split(r"[./]", name.lower())[-1]: name for name in names}
    return next((last[step] for step in _STEPS if step in last), None)


def check(read: Read) -> None:
    """Raise HpxferError unless all losses are one in name and unit, all runs of a shape finished as many steps, and
    each axis has two scales.
    """
    runs = read.runs
    with_result = runs[runs["loss"].notna()]
    for column in ("loss_name", "unit"):
        _check_same(read, with_result, column, "the table")
    trained = runs[(runs["status"] == "finished") & runs["steps"].notna()]
    for _, own in trained.groupby(["axis", "scale", "shape"], sort=False):
        _check_same(read, own, "steps", shape_label(own["scale_name"].iloc[0], own["scale"].iloc[0]))
    for axis, own in runs.groupby("axis", sort=False):
        first, last = own["row"].iloc[[0, -1]]
        if own["scale"].nunique() < 2:
            alone = f"{scale_text(own['scale'].iloc[0])} alone in rows {first}" + (
                f" to {last}" if last != first else ""
            )
            raise read.fault(first, "scale", f"axis {shown(axis)} must have two scales or more, got {alone}")
    for column in ("axis", "hp"):  # whose figures would have one file name
        seen: dict[str, str] = {}
        for name in runs[column].unique():
            if (other := seen.setdefault(_UNFIT.sub("_", name), name)) != name:
                what = f"must differ from others in a letter or digit, got {shown(name)} and {shown(other)}"
                raise read.fault(runs.loc[runs[column] == name, "row"].iloc[0], column, what)


def _check_same(read: Read, runs: pd.DataFrame, column: str, where: str) -> None:
    values, codes = runs[column], pd.factorize(runs[column], use_na_sentinel=False)[0]
    if codes.any():  # the first value has the code 0
        at = int((codes > 0).argmax())
        here, there = (
            scale_text(each) if isinstance(each, float) else "an empty cell" if each is None else shown(each)
            for each in values.iloc[[at, 0]]
        )
        raise read.fault(
            runs["row"].iloc[at],
            column,
            f"must be the same for all results of {where}, got {here} here and {there} in row {runs['row'].iloc[0]}",
        )


def odd(read: Read) -> list[str]:
    """Return a note on each arm, scale and HP value that few rows have, and what it may be a misspelling of.

    A value that few rows have may be there on purpose, e.g. at the end of one shape's grid. So it is named only if its
    rows lack the run of one other value, or if it is far from all others.
    """
    notes = dict.fromkeys(
        note
        for (hp, _), own in read.runs.groupby(["hp", "axis"], sort=False)
        for column, what in (("arm", "arm"), ("scale", own["scale_name"].iloc[0]), ("value", str(hp)))
        for note in _odd(own, column, what)
    )
    more = [f"{len(notes) - MOST_ODD} more names and numbers are in few rows"] if len(notes) > MOST_ODD else []
    return [*list(notes)[:MOST_ODD], *more]


def _odd(runs: pd.DataFrame, column: str, what: str) -> Iterator[str]:
    counts: dict[Any, int] = Counter(runs[column])
    places = ["arm", "scale", "value", "seed"]
    cells = set(runs[places].itertuples(index=False, name=None))
    for level, num in counts.items() if len(counts) > 1 else ():
        others = {other: count for other, count in counts.items() if other != level}
        usual, own = median(others.values()), runs[runs[column] == level]
        is_rare = num * FEW <= usual
        is_far = column == "value" and num < usual and _is_far(level, [*others])
        if column != "arm" and not is_rare and not is_far:
            continue
        moved = {other: own.assign(**{column: other})[places] for other, count in others.items() if 2 * count >= usual}
        free = [other for other, rows in moved.items() if cells.isdisjoint(rows.itertuples(index=False, name=None))]
        if column == "arm":
            names = {_folded(other): other for other, count in others.items() if count >= num}
            near = difflib.get_close_matches(_folded(level), names, n=1, cutoff=ALIKE)
            meant = [names[name] for name in near if is_rare or name == _folded(level) or names[name] in free]
            is_odd = is_rare or bool(meant)
        else:
            meant = free if len(free) == 1 else []
            is_odd = is_far or (is_rare and (column == "scale" or 1 <= len(free) <= 2))
        if is_odd:
            low, high = min(others.values()), max(others.values())
            rows = f"{num} row{'s' * (num > 1)} ({ranges(sorted(own['row']))})"
            asked = f": is it {_spelled(meant[0])}?" if meant else ""
            fill = f"{low}" if low == high else f"{low} to {high}"
            yield f"{what} {_spelled(level)} has {rows}, and the others have {fill}{asked}"


def _folded(name: str) -> str:
    """Return a name without what spellings of one name differ in."""
    return re.sub(r"[\s_-]+", "-", name).casefold()


def _is_far(value: float, others: Sequence[float]) -> bool:
    """Return whether a value is much further from the others than these are from each other."""
    logs = sorted(math.log2(other) for other in others if other > 0)
    if value <= 0 or len(logs) < 2:
        return False
    gap = min(abs(math.log2(value) - log) for log in logs)
    return gap > max(FAR, 2 * max(high - low for low, high in pairwise(logs)))


def _spelled(level: object) -> str:
    return shown(level) if isinstance(level, str) else f"{level:g}"


def cells_without_row(line: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Return (axis, arm) -> how many cells of an HP's grid of shapes, values and seeds have no row."""
    out = {}
    for axis, own in line.groupby("axis"):
        num = math.prod(own[name].nunique() for name in ("scale", "value", "seed"))
        for arm, runs in own.groupby("parameterization"):
            out[str(axis), str(arm)] = num - len(runs.drop_duplicates(["scale", "value", "seed"]))
    return out
