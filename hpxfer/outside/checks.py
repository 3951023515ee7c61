"""What no verdict may rest on: two results of one seed, mixed steps, mixed losses, and a single scale."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.cells import SIZE, Bad, is_empty, number
from hpxfer.outside.columns import may_hold
from hpxfer.outside.runs import AGAIN, Read, ranges
from hpxfer.verdict.shape_names import scale_text, shape_label

DUPLICATES = ("refuse", "last")
CELL = ["arm", "axis", "scale", "shape", "hp", "value", "seed"]  # what no two runs with a result may share
_STEPS = ("step", "_step", "global_step", "steps", "iteration", "iter", "training_iteration", "epoch")
_UNFIT = re.compile(r"[^\w.+-]+")  # what no file name of a figure has


def without_duplicates(read: Read, runs: pd.DataFrame, duplicates: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return one run per cell and seed, in the order of the rows, and what was left out, in words.

    `last` keeps the last row, with a result or not. `refuse` raises HpxferError for two rows, unless one of them says
    that its run failed or runs: then the other one counts.
    """
    if duplicates not in DUPLICATES:
        raise HpxferError(f"--duplicates: unknown choice {shown(duplicates)}; {nearest(duplicates, DUPLICATES)}")
    again = runs["status"].isin(AGAIN) & (duplicates == "refuse")
    kept = runs.loc[again.sort_values(ascending=False, kind="stable").index].drop_duplicates(CELL, keep="last")
    sure = runs[~again]
    before = sure.groupby(CELL)["row"].shift().dropna().astype(int)
    pairs = list(zip(before, sure.loc[before.index, "row"], strict=True))
    if not pairs:
        dropped = len(runs) - len(kept)
        note = f"{dropped} runs without a result are left out, as another row has the same place"
        return kept.sort_index(), (note,) if dropped else ()
    differ = _differing(read, pairs)
    by_row = runs.drop_duplicates("row").set_index("row")
    if duplicates == "refuse":
        other, row = pairs[0]
        here, there = ("none" if loss != loss else f"{loss:g}" for loss in by_row.loc[[row, other], "loss"])
        raise read.fault(
            row,
            "loss",
            f"one HP value, shape, arm and seed must have one result, got {here} here and {there} in row {other}; "
            + _why_again(read, differ),
        )
    steps = by_row["steps"]
    if (column := steps_column(differ)) is not None:
        counted = pd.to_numeric(pd.Series(read.own[column], range(1, len(read.own[column]) + 1)), errors="coerce")
        steps = steps.fillna(counted)
    for other, row in pairs:
        if steps[other] > steps[row]:
            got = f"got step {steps[row]:g} here and {steps[other]:g} in row {other}"
            raise read.fault(row, "loss", f"the last row of a run must be that of its last step, {got}")
    why = f"; they differ in {', '.join(differ)}" if differ else ""
    text = f"{len(pairs)} results are left out, as a later row has the same HP value, shape, arm and seed{why}"
    return kept.sort_index(), (text,)


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


def steps_column(names: Sequence[str]) -> str | None:
    """Return which of some columns counts steps, else epochs; None if none does."""
    last = {re.split(r"[./]", name.lower())[-1]: name for name in names}
    return next((last[step] for step in _STEPS if step in last), None)


def _why_again(read: Read, differ: Sequence[str]) -> str:
    """Return what rows of one cell probably are, and the option that says so."""
    if (steps := steps_column(differ)) is not None:
        mapped = "" if "steps" in read.columns else f" --map steps={steps}"
        return f"the rows differ in {steps}: if they are steps of one run, keep its last with --duplicates last{mapped}"
    if not differ:
        return "remove one, give them seeds, or keep the last with --duplicates last"
    fix = f"if it names the arm, --map arm={differ[0]}, else judge the rows of each of its values by themselves"
    if may_hold(differ[0], "scale"):
        fix = f"if it is a size of the model, --shape {read.columns.get('scale', 'NAME')} --shape {differ[0]}"
    return f"the rows differ in {', '.join(differ)}: {fix}"


def without_result(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return in words which rows have no result; empty if all have one."""
    rows = runs.drop_duplicates("row").sort_values("row")
    lost = rows[rows["loss"].isna()]
    listed = ", ".join(f"{num} {status}" for status, num in sorted(Counter(lost["status"]).items()))
    text = f"{len(lost)} of {len(rows)} runs have no result ({listed}): rows {ranges(lost['row'].tolist())}"
    return (text,) if len(lost) else ()


def check(read: Read, runs: pd.DataFrame) -> None:
    """Raise HpxferError unless all losses are one in name and unit, all runs of a shape finished as many steps, and
    each axis has two scales.
    """
    with_result = runs[runs["loss"].notna()]
    for column in ("loss_name", "unit"):
        _check_same(read, with_result, column, "the table")
    trained = runs[(runs["status"] == "finished") & runs["steps"].notna()]
    for _, own in trained.groupby(["axis", "scale", "shape"], sort=False):
        _check_same(read, own, "steps", shape_label(own["scale_name"].iloc[0], own["scale"].iloc[0]))
    for axis, own in runs.groupby("axis", sort=False):
        first, last = own["row"].iloc[[0, -1]]
        if own["scale"].nunique() < 2:
            raise read.fault(
                first,
                "scale",
                f"axis {shown(axis)} must have two scales or more, got {scale_text(own['scale'].iloc[0])} alone in "
                f"rows {first}" + (f" to {last}" if last != first else ""),
            )
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
