"""The rules and the loss that a sweep is judged by. A search that stops at a verdict and its report share them."""

from __future__ import annotations

from dataclasses import replace

from hpxfer.host import NATS, JudgedLoss
from hpxfer.scaling.tables import OWN
from hpxfer.search.kinds import kind_of
from hpxfer.spec import LossSpec, SweepSpec
from hpxfer.store import TrainerChecks, loss_row
from hpxfer.verdict import Rules


def rules_of(spec: SweepSpec, checks: TrainerChecks | None = None) -> Rules:
    """Return the rules of the verdicts on a sweep.

    Of the arms of a user's own trainer, only the user can say which one is the control. `checks` of that trainer say
    whether its losses can be believed. Those of other code do not count.
    """
    limit, error = spec.judge.regret_limit, kind_of(spec).error(spec)
    rules = Rules(loss=limit.loss, octaves=limit.octaves)
    if (trainer := spec.trainer) is not None:
        rules = replace(rules, seeds_differ=True)
        if trainer.arms or trainer.control:
            control = f"{OWN if trainer.arms else ''}{trainer.control}" if trainer.control else None
            rules = replace(rules, control=control, outside=control is None)
        if checks is not None and checks.counts_for(trainer):
            why = checks.undecided_because
            rules = replace(rules, doubts=() if why is None else (why,), extra_sd=checks.extra_sd)
    return rules if error is None else replace(rules, error=error)


def judged_by(spec: SweepSpec, loss: str | None = None) -> JudgedLoss:
    """Return what a loss of a sweep is, by default the one that it is judged by."""
    name = loss or spec.judge.loss
    words, unit = loss_row(name).words, NATS.unit
    if spec.trainer is not None:
        unit = spec.trainer.loss.unit
        if spec.trainer.loss.name != LossSpec().name and name == spec.judge.loss:
            words = spec.trainer.loss.name
    elif spec.model.loss != "cross_entropy":
        unit = "squared error"
    return JudgedLoss(name=name, words=words, unit=unit)
