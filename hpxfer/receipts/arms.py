"""Do the arms of a sweep give one model at the base, and do its runs measure one thing? Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpxfer.receipts.entries import number
from hpxfer.receipts.outcome import ARMS, MEASURE, Outcome, listed

# Standard deviations by which two runs of one thing may differ.
SIGMAS = 3.0
BUDGET = ("tokens", "eval_digest", "loss_name")


def arms_agree(losses: Mapping[str, float], *, spread: float = 0.0) -> Outcome:
    """Return whether the base has one loss through all arms. If not, the trainer scales by itself.

    At the base every factor is 1, so that all arms are one model.

    Args:
        losses: arm -> loss of the base, with one seed and the same HPs.
        spread: standard deviation of a loss over runs of one seed, from `base_repeats`; 0 if the bits repeat.
    """
    finite = {arm: loss for arm, loss in losses.items() if math.isfinite(loss)}
    if len(finite) < 2:
        reason = f"needs the base through two arms, got {len(finite)} finished"
        return Outcome(check=ARMS, status="not possible", reason=reason)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    apart = finite[high] - finite[low]
    if apart > SIGMAS * math.sqrt(2) * spread:
        reason = (
            f"the base ends at {finite[low]:.6g} through {low} and at {finite[high]:.6g} through {high}; the trainer "
            "scales by itself, or the arms differ in more than their factors"
        )
        return Outcome(check=ARMS, status="failed", reason=reason)
    return Outcome(check=ARMS, status="passed", reason=f"the base has one loss through {', '.join(sorted(finite))}")


def same_measure(runs: Sequence[Mapping[str, Any]]) -> Outcome:
    """Return whether runs that are compared have the tokens that they claim, one set of held-out tokens and one unit.

    Args:
        runs: of each `name`, and what is known of `tokens` (trained on), `steps`, `batch_tokens`, `eval_digest` and
            `loss_name`. Runs along an axis of duration are no such set.
    """
    wrong = []
    for each in runs:
        tokens, steps, batch = (number(each, key) for key in ("tokens", "steps", "batch_tokens"))
        if tokens is not None and steps is not None and batch is not None and tokens != steps * batch:
            wrong.append(f"{each.get('name')} has {tokens:.12g} tokens in place of {steps:g} x {batch:g}")
    told = {key: {each[key] for each in runs if each.get(key) is not None} for key in BUDGET}
    wrong += [f"{key}: {', '.join(sorted(map(str, values)))}" for key, values in told.items() if len(values) > 1]
    if wrong:
        return Outcome(check=MEASURE, status="failed", reason=f"must be one for all runs: {listed(wrong)}")
    if len(runs) < 2 or not any(told.values()):
        return Outcome(check=MEASURE, status="not possible", reason="needs two runs that report their tokens and loss")
    return Outcome(check=MEASURE, status="passed", reason=f"{len(runs)} runs have the same tokens, data and loss")
