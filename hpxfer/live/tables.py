"""The tables of a live page: the shapes of a run and its running stacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.host.output import spell_time
from hpxfer.progress.status import RunningStack, ShapeProgress
from hpxfer.report.tables import Cell, Column, Table

_SHAPES = (
    Column(name="shape"),
    Column(name="trials"),
    Column(name="done"),
    Column(name="running"),
    Column(name="missing"),
    Column(name="diverged"),
    Column(name="stopped early"),
    Column(name="failed"),
    Column(name="best so far", kept=True),
    Column(name="at"),
)
_STACKS = (
    Column(name="shape"),
    Column(name="trials"),
    Column(name="diverged"),
    Column(name="step"),
    Column(name="of"),
    Column(name="training loss", form="{:.4f}", kept=True),
    Column(name="for"),
    Column(name="on"),
)


def shapes_table(shapes: Sequence[ShapeProgress]) -> Table:
    """Return one row per shape."""
    note = "Missing are the trials that have no result yet: those that wait, run or failed."
    return Table(title="Shapes", columns=_SHAPES, rows=tuple(map(_shape, shapes)), note=note).without_empty_columns()


def stacks_table(stacks: Sequence[RunningStack], title: str) -> Table:
    """Return one row per stack on a worker, with the lowest of its trials' last training losses."""
    return Table(title=title, columns=_STACKS, rows=tuple(map(_stack, stacks)))


def _shape(shape: ShapeProgress) -> tuple[Cell, ...]:
    return (
        shape.label,
        shape.num_trials,
        shape.num_done,
        shape.running,
        shape.num_left,
        shape.diverged,
        shape.stopped or None,
        shape.failed,
        shape.best_text or None,
        shape.best or None,
    )


def _stack(stack: RunningStack) -> tuple[Cell, ...]:
    return (
        stack.label,
        stack.num_trials,
        max(0, stack.num_trials - stack.alive),
        stack.step,
        stack.steps,
        stack.loss_nats,
        spell_time(stack.running_s),
        f"{stack.host} {stack.pid}" if stack.host else None,
    )
