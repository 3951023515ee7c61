"""The losses that a sweep may be judged by and the errors beside them: the column of a stored trial that holds each."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.errors import HpxferError, nearest, shown


@dataclass(frozen=True)
class LossRow:
    """One loss."""

    name: str  # as in `judge.loss`
    column: str  # of a stored trial
    words: str
    heading: str  # of a column, without its unit


LOSSES = (
    LossRow("validation", "validation_loss_nats", "validation loss", "validation loss"),
    LossRow("final_window", "final_window_loss_nats", "training loss over the last steps", "final loss"),
)
LOSS_COLUMNS = {row.name: row.column for row in LOSSES}
# Shares of the held-out samples, and what pages call 1 minus each.
ERROR_COLUMNS = {"validation_error": "validation accuracy", "validation_top5_error": "validation top-5 accuracy"}
LOSS_NUMBERS = (*LOSS_COLUMNS.values(), *ERROR_COLUMNS)


def loss_row(name: str) -> LossRow:
    """Return the loss of this name. Raise HpxferError if there is none."""
    for row in LOSSES:
        if row.name == name:
            return row
    raise HpxferError(f"loss: unknown loss {shown(name)}; {nearest(name, LOSS_COLUMNS)}")
