"""The losses that a sweep may be judged by: the column of a stored trial that holds each, and what it is.

This is the one place that knows it. Pages, figures and messages get a `JudgedLoss` from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.verdict.loss import JudgedLoss, Kind


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """One loss. `top` is given for an error: a sample is wrong if its class is not among so many."""

    name: str  # as in `judge.loss`
    column: str  # of a stored trial
    words: str
    heading: str  # of a column, without its unit
    top: int | None = None


LOSSES = (
    LossRow(name="validation", column="validation_loss_nats", words="validation loss", heading="validation loss"),
    LossRow(
        name="final_window",
        column="final_window_loss_nats",
        words="training loss over the last steps",
        heading="final loss",
    ),
    LossRow(
        name="validation_error",
        column="validation_error",
        words="validation error",
        heading="validation accuracy",
        top=1,
    ),
    LossRow(
        name="validation_top5_error",
        column="validation_top5_error",
        words="validation top-5 error",
        heading="validation top-5 accuracy",
        top=5,
    ),
)
LOSS_COLUMNS = {row.name: row.column for row in LOSSES}


def loss_row(name: str) -> LossRow:
    """Return the loss of this name. Raise HpxferError if there is none."""
    for row in LOSSES:
        if row.name == name:
            return row
    raise HpxferError(f"loss: unknown loss {shown(name)}; {nearest(name, LOSS_COLUMNS)}")


def judged_loss(
    name: str, *, classes: int | None, num_samples: int | None, trained: Kind = "cross entropy"
) -> JudgedLoss:
    """Return what a loss is in a sweep.

    `classes` are those of its data, None for tokens and real targets; `num_samples` are held out. `trained` is the kind
    of the loss that it trains with. Raises HpxferError for a name that no loss has.
    """
    row = loss_row(name)
    if row.top is None:
        return JudgedLoss(name=name, words=row.words, kind=trained, trained=trained)
    return JudgedLoss(
        name=name,
        words=row.words,
        kind="error",
        guess=None if classes is None else max(0.0, 1 - row.top / classes),
        num_samples=num_samples,
        trained=trained,
    )
