"""Does the schedule keep the ratios between groups? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hpxfer.receipts.entries import RELATIVE, in_optimizer, number, same
from hpxfer.receipts.outcome import SCHEDULE, Outcome, listed


def schedule_keeps_ratios(receipts: Sequence[Mapping[str, Any]], *, tolerance: float = RELATIVE) -> Outcome:
    """Return whether the LR of every parameter is the same multiple of its own peak at each step.

    An absolute floor, or one LR for all groups, undoes a parameterization during warm-up or decay.

    Args:
        receipts: `{"step": s, "groups": [...]}`, at best of a warm-up step, of the peak and of the last step.
        tolerance: relative.
    """
    by_step = {int(each["step"]): _rates(each["groups"]) for each in receipts}
    by_step = {step: rates for step, rates in by_step.items() if rates}
    if len(by_step) < 2:
        reason = f"needs receipts of at least 2 steps with LRs, got {len(by_step)}; report warm-up, peak and last step"
        return Outcome(check=SCHEDULE, status="not possible", reason=reason)
    names = set.intersection(*(set(rates) for rates in by_step.values()))
    if lost := sorted({name for rates in by_step.values() for name in rates} - names):
        return Outcome(check=SCHEDULE, status="failed", reason=f"not in the receipt of every step: {listed(lost)}")
    peak = max(by_step, key=lambda step: sum(by_step[step].values()))
    top = {name: rate for name, rate in by_step[peak].items() if rate > 0}
    if not top:
        return Outcome(check=SCHEDULE, status="not possible", reason="every LR is 0 in every receipt")
    for step, rates in sorted(by_step.items()):
        factors = {name: rates[name] / rate for name, rate in top.items()}
        common = median(factors.values())
        wrong = [name for name, factor in factors.items() if not same(factor, common, tolerance)]
        if wrong:
            spelled = listed(f"{name} {factors[name]:.4g}" for name in wrong)
            reason = f"at step {step} the LR is {common:.4g} of the peak for most, and otherwise for {spelled}"
            return Outcome(check=SCHEDULE, status="failed", reason=reason)
    steps = ", ".join(map(str, sorted(by_step)))
    return Outcome(check=SCHEDULE, status="passed", reason=f"one factor for all {len(top)} parameters at steps {steps}")


def _rates(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return name -> LR of the parameters whose LR is known."""
    found = ((str(each["name"]), number(each, "lr")) for each in in_optimizer(groups))
    return {name: rate for name, rate in found if rate is not None}
