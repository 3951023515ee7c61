"""What no verdict may rest on: two results of one seed, mixed steps, mixed losses, and a single scale. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.runs import Read, Run
from hpxfer.verdict.labels import scale_text, shape_label

Duplicates = Literal["refuse", "last"]
DUPLICATES: tuple[Duplicates, ...] = ("refuse", "last")


def without_duplicates(read: Read, runs: Sequence[Run], duplicates: str) -> tuple[list[Run], tuple[str, ...]]:
    """Return one run per cell and seed, in the order of the rows, and what was left out, in words.

    A run with a result replaces those without one. Of two with a result, `last` keeps the last row and `refuse` raises
    HpxferError.
    """
    if duplicates not in DUPLICATES:
        raise HpxferError(f"--duplicates: unknown choice {shown(duplicates)}; {nearest(duplicates, DUPLICATES)}")
    kept: dict[tuple[object, ...], Run] = {}
    replaced = dropped = 0
    for run in runs:
        before = kept.get(run.cell)
        if before is None:
            kept[run.cell] = run
            continue
        if before.has_result and run.has_result:
            if duplicates == "refuse":
                raise read.fault(
                    run.row,
                    "loss",
                    f"one HP value, shape, arm and seed must have one result, got {run.loss:g} here and "
                    f"{before.loss:g} in row {before.row}; remove one, give them seeds, or keep the last with "
                    "--duplicates last",
                )
            replaced += 1
        else:
            dropped += 1
        if run.has_result or not before.has_result:
            del kept[run.cell]  # so that the order is that of the rows
            kept[run.cell] = run
    notes = []
    if replaced:
        notes.append(f"{replaced} results are left out, as a later row has the same HP value, shape, arm and seed")
    if dropped:
        notes.append(f"{dropped} runs without a result are left out, as another row has the same place")
    return list(kept.values()), tuple(notes)


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
