"""What no verdict may rest on: two results of one seed, mixed steps, mixed losses, and a single scale. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.cells import Bad, is_empty, positive
from hpxfer.outside.columns import may_hold
from hpxfer.outside.runs import Read, Run, ranges
from hpxfer.verdict.shape_names import scale_text, shape_label

Duplicates = Literal["refuse", "last"]
DUPLICATES: tuple[Duplicates, ...] = ("refuse", "last")
_STEPS = ("step", "_step", "global_step", "steps", "iteration", "iter", "training_iteration", "epoch")


def without_duplicates(read: Read, runs: Sequence[Run], duplicates: str) -> tuple[list[Run], tuple[str, ...]]:
    """Return one run per cell and seed, in the order of the rows, and what was left out, in words.

    `last` keeps the last row, with a result or not. `refuse` raises HpxferError for two rows, unless one of them says
    that its run failed or runs: then the other one counts.
    """
    if duplicates not in DUPLICATES:
        raise HpxferError(f"--duplicates: unknown choice {shown(duplicates)}; {nearest(duplicates, DUPLICATES)}")
    kept: dict[tuple[object, ...], Run] = {}
    pairs: list[tuple[Run, Run]] = []
    dropped = 0
    for run in runs:
        before = kept.get(run.cell)
        if before is not None and duplicates == "refuse" and not (before.may_be_again or run.may_be_again):
            pairs.append((before, run))
        elif before is not None and duplicates == "refuse":
            dropped += 1
            if run.may_be_again and not before.may_be_again:
                continue
        elif before is not None:
            pairs.append((before, run))
        kept.pop(run.cell, None)  # so that the order is that of the rows
        kept[run.cell] = run
    differ = _differing(read, pairs) if pairs else []
    if pairs and duplicates == "refuse":
        before, run = pairs[0]
        raise read.fault(
            run.row,
            "loss",
            f"one HP value, shape, arm and seed must have one result, got {_result(run)} here and {_result(before)} in "
            f"row {before.row}; {_which_column(read, differ)}",
        )
    _check_last(read, pairs, steps_column(differ))
    notes = []
    if pairs:
        why = f"; they differ in {', '.join(differ)}" if differ else ""
        notes.append(
            f"{len(pairs)} results are left out, as a later row has the same HP value, shape, arm and seed{why}"
        )
    if dropped:
        notes.append(f"{dropped} runs without a result are left out, as another row has the same place")
    return list(kept.values()), tuple(notes)


def _check_last(read: Read, pairs: Sequence[tuple[Run, Run]], column: str | None) -> None:
    """Raise HpxferError if a row that is kept is of an earlier step than one that is left out."""
    for before, run in pairs:
        left, kept = _step(read, before, column), _step(read, run, column)
        if left is not None and kept is not None and left > kept:
            rule = "the last row of a run must be that of its last step"
            got = f"got step {kept:g} here and {left:g} in row {before.row}"
            raise read.fault(run.row, "loss", f"{rule}, {got}; sort the table by steps")


def _step(read: Read, run: Run, column: str | None) -> float | None:
    if run.steps is not None or column is None:
        return run.steps
    try:
        return float(read.own[column][run.row - 1])
    except (TypeError, ValueError):
        return None


def _differing(read: Read, pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    """Return the columns of a table that nothing was read from and that differ between rows of one run.

    Columns whose values hardly repeat are measured numbers and do not count.
    """
    out, used = [], {*read.columns.values(), *read.shape}
    for name, cells in read.own.items():
        levels = list(map(_level, cells)) if name not in used else []
        if levels and 2 * len(set(levels)) <= len(levels):
            out += [name] if all(levels[one.row - 1] != levels[other.row - 1] for one, other in pairs) else []
    return out


def _level(cell: Any) -> object:
    try:
        return "" if is_empty(cell) else positive(cell)
    except Bad:
        return str(cell).strip()


def steps_column(names: Sequence[str]) -> str | None:
    """Return which of some columns counts steps, else epochs; None if none does."""
    last = {re.split(r"[./]", name.lower())[-1]: name for name in names}
    return next((last[step] for step in _STEPS if step in last), None)


def _which_column(read: Read, differ: Sequence[str]) -> str:
    """Return what rows of one cell probably are, and the option that says so."""
    if (steps := steps_column(differ)) is not None:
        mapped = "" if "steps" in read.columns else f" --map steps={steps}"
        return f"the rows differ in {steps}: if they are steps of one run, keep its last with --duplicates last{mapped}"
    if not differ:
        return "remove one, give them seeds, or keep the last with --duplicates last"
    name = differ[0]
    if may_hold(name, "scale"):
        fix = f"if it is a size of the model, --shape {read.columns.get('scale', 'NAME')} --shape {name}"
    else:
        fix = f"if it names the arm, --map arm={name}, else judge the rows of each of its values by themselves"
    return f"the rows differ in {', '.join(differ)}: {fix}"


def _result(run: Run) -> str:
    return "none" if run.loss is None else f"{run.loss:g}"


def without_result(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return in words which rows have no result; empty if all have one."""
    rows = {run.row: run for run in runs}
    lost = sorted(row for row, run in rows.items() if not run.has_result)
    if not lost:
        return ()
    counts = Counter(rows[row].status for row in lost)
    listed = ", ".join(f"{num} {status}" for status, num in sorted(counts.items()))
    return (f"{len(lost)} of {len(rows)} runs have no result ({listed}): rows {ranges(lost)}",)


def check_alike(read: Read, runs: Sequence[Run]) -> None:
    """Raise HpxferError unless all losses are one in name and unit, and all runs of a shape finished as many steps."""
    for column in ("loss_name", "unit"):
        _check_same(read, [run for run in runs if run.has_result], column, "the table")
    of_shape: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if run.status == "finished" and run.steps is not None:
            of_shape.setdefault((run.axis, run.scale, run.shape), []).append(run)
    for own in of_shape.values():
        _check_same(read, own, "steps", shape_label(own[0].scale_name, own[0].scale))


def _check_same(read: Read, runs: Sequence[Run], column: str, where: str) -> None:
    fixes = {
        "steps": "runs that stopped early are running, not finished, and those of another length make a table of "
        "their own",
        "loss_name": "judge one loss at a time",
        "unit": "convert one of them",
    }
    for run in runs:
        if getattr(run, column) != getattr(runs[0], column):
            here, there = (_spelled(getattr(one, column)) for one in (run, runs[0]))
            raise read.fault(
                run.row,
                column,
                f"must be the same for all results of {where}, got {here} here and {there} in row {runs[0].row}; "
                f"{fixes[column]}",
            )


def _spelled(value: object) -> str:
    if isinstance(value, float):
        return scale_text(value)
    return "an empty cell" if value is None else shown(value)


def check_scales(read: Read, runs: Sequence[Run]) -> None:
    """Raise HpxferError for an axis with one scale, along which nothing can transfer."""
    axes: dict[str, list[Run]] = {}
    for run in runs:
        axes.setdefault(run.axis, []).append(run)
    for axis, own in axes.items():
        if len({run.scale for run in own}) < 2:
            last = f" to {own[-1].row}" if own[-1].row != own[0].row else ""
            raise read.fault(
                own[0].row,
                "scale",
                f"axis {shown(axis)} must have two scales or more, got {scale_text(own[0].scale)} alone in rows "
                f"{own[0].row}{last}; add runs of a larger shape, or map another column",
            )
