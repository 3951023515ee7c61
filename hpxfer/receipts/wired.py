"""Does the LR reach every parameter, and does every role learn? Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpxfer.receipts.entries import Entry, number, same
from hpxfer.receipts.outcome import WIRED, Outcome, Status, listed
from hpxfer.recipe.match import AT, JOIN
from hpxfer.recipe.roles_by_place import proposals
from hpxfer.scaling.roles import ROLES

# float32 rounds a step of 1e-5 beside a weight of order 1 by 0.6%.
TOLERANCE = 0.02
# The matrices that end a branch. They have a gradient at the first step, unless the readout starts at zero.
ENDS = ("attn_out", "expert_out", "shared_out", "dense_out")


def hp_is_wired(
    at_lr: Mapping[str, float],
    at_twice: Mapping[str, float],
    groups: Sequence[Entry] = (),
    *,
    tolerance: float = TOLERANCE,
) -> Outcome:
    """Return whether the first step of Adam doubles for every parameter when the LR doubles, and every role learns.

    The first step must have a factor of the schedule above 0. Weight decay doubles with the LR too, so that a parameter
    that moves by its decay alone is one without a gradient. A role is that of an entry of `groups`, or what the name
    says. If no matrix of a role has a gradient, the check is failed if nothing but a missing gradient explains it, and
    not possible if a matrix that starts at zero behind it does.

    Args:
        at_lr: name -> RMS of the change after one update, as `changes_since` gives it.
        at_twice: the same at twice the LR, with the same seed and batch.
        groups: the receipt of this update at the LR, for roles. With `std` and `mean` of the start it tells decay from
            learning, which `changes_since` does too.
        tolerance: relative.
    """
    if lost := sorted(set(at_lr) ^ set(at_twice)):
        return _outcome("failed", f"only one of the two runs changed {listed(lost)}")
    decayed = {str(each.get("name")) for each in groups if _decays_alone(each, at_lr, tolerance)}
    moved = [name for name in at_lr if (at_lr[name] or at_twice[name]) and name not in decayed]
    if not moved:
        reason = "no parameter learned: the schedule starts at 0, or nothing was trained; compare a later step"
        return _outcome("not possible", reason)
    wrong = [
        f"{name} by {at_twice[name] / at_lr[name]:.3g}" if at_lr[name] else f"{name} from 0"
        for name in moved
        if not same(at_twice[name], 2 * at_lr[name], tolerance)
    ]
    if wrong:
        return _outcome("failed", f"twice the LR must double the first step, got {listed(wrong)}")
    still = [name for name in at_lr if name not in set(moved)]
    note = f"; without a gradient: {listed(still)}" if still else ""
    role_of = _matrices(at_lr, groups)
    alive = {role for name in moved for role in role_of.get(name, ())}
    dead = dict.fromkeys(role for name in still for role in role_of.get(name, ()) if role not in alive)
    if any(role in ENDS for role in dead) and any(role in ENDS for role in alive):
        return _outcome("failed", f"no matrix of the roles {listed(dead)} has a gradient{note}")
    if dead:
        why = "compare a later step if a matrix behind them starts at zero"
        return _outcome(
            "not possible",
            f"no matrix of the roles {listed(dead)} has a gradient, so that nothing shows their LR; {why}{note}",
        )
    return _outcome("passed", f"twice the LR doubles the first step of {len(moved)}{note}")


def _outcome(status: Status, reason: str) -> Outcome:
    return Outcome(check=WIRED, status=status, reason=reason)


def _matrices(names: Mapping[str, float], groups: Sequence[Entry]) -> dict[str, tuple[str, ...]]:
    """Return name -> roles of the matrices, as far as entries or the names say them."""
    by_name = {name: found.role for name, found in proposals(dict.fromkeys(names)).items()}
    given = {str(each.get("name")): role for each in groups if isinstance(role := each.get("role"), str)}
    roles = {name: tuple(role.partition(AT)[0].split(JOIN)) for name, role in {**by_name, **given}.items()}
    return {
        name: of for name, of in roles.items() if all(ROLES.get(role) not in ("ones", "zeros", None) for role in of)
    }


def _decays_alone(entry: Entry, changes: Mapping[str, float], tolerance: float) -> bool:
    """Return whether the change of a parameter is what weight decay takes of it."""
    rate, decay, std = (number(entry, key) for key in ("lr", "weight_decay", "std"))
    change = changes.get(str(entry.get("name")))
    if not rate or not decay or not std or not change:
        return False
    return same(change, rate * decay * math.hypot(std, number(entry, "mean") or 0.0), tolerance)
