"""Does the LR reach every parameter? Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpxfer.receipts.entries import same
from hpxfer.receipts.outcome import WIRED, Outcome, listed

# float32 rounds a step of 1e-5 beside a weight of order 1 by 0.6%.
TOLERANCE = 0.02


def hp_is_wired(at_lr: Mapping[str, float], at_twice: Mapping[str, float], *, tolerance: float = TOLERANCE) -> Outcome:
    """Return whether the first step of Adam doubles for every parameter when the LR doubles.

    The first step must have a factor of the schedule above 0. Weight decay doubles with the LR too.

    Args:
        at_lr: name -> RMS of the change after one update, as `changes_since` gives it.
        at_twice: the same at twice the LR, with the same seed and batch.
        tolerance: relative.
    """
    if lost := sorted(set(at_lr) ^ set(at_twice)):
        return Outcome(check=WIRED, status="failed", reason=f"only one of the two runs changed {listed(lost)}")
    moved = [name for name in at_lr if at_lr[name] or at_twice[name]]
    if not moved:
        reason = "no parameter changed: the schedule starts at 0, or nothing was trained; compare a later step"
        return Outcome(check=WIRED, status="not possible", reason=reason)
    wrong = [
        f"{name} by {at_twice[name] / at_lr[name]:.3g}" if at_lr[name] else f"{name} from 0"
        for name in moved
        if not same(at_twice[name], 2 * at_lr[name], tolerance)
    ]
    if wrong:
        return Outcome(
            check=WIRED, status="failed", reason=f"twice the LR must double the first step, got {listed(wrong)}"
        )
    still = [name for name in at_lr if name not in moved]
    note = f"; without a gradient: {listed(still)}" if still else ""
    return Outcome(check=WIRED, status="passed", reason=f"twice the LR doubles the first step of {len(moved)}{note}")
