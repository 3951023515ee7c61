"""Does the LR reach every parameter? Do seeds differ, and do arms agree at the base? Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from hpxfer.receipts.entries import ARMS, MEASURE, REPEAT, SEEDS, WIRED, Entry, Outcome, Status, listed, number, same
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


# Do seeds differ, and does one seed repeat? Pure.
#
# If the seed is ignored, the scatter of seeds is 0 and a verdict is falsely sure. If one seed does not repeat, the
# noise is larger than the scatter of seeds says.

PARTS = {"init": "the initial weights", "batch": "the first batch", "loss": "the loss"}
SMALL = 0.3  # of the noise of seeds


def init_digest(groups: Sequence[Entry]) -> str | None:
    """Return one hash of all initial weights in a receipt, or None if it has none."""
    found = sorted((str(each.get("name")), str(each["digest"])) for each in groups if each.get("digest") is not None)
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest() if found else None


def seeds_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> Outcome:
    """Return whether two runs that differ in the seed alone differ in init, first batch and loss.

    Args:
        one: of one seed `init` and `batch`, any values that are equal for equal bits, such as digests, and `loss`, a
            number or a list. What is absent or None is unknown.
        other: the same of another seed, at the same shape and HPs.
    """
    known = [part for part in PARTS if _shows(one.get(part)) and _shows(other.get(part))]
    alike = [PARTS[part] for part in known if one[part] == other[part]]
    unknown = [PARTS[part] for part in PARTS if part not in known]
    note = f"; not reported: {', '.join(unknown)}" if unknown else ""
    if alike:
        reason = f"two seeds have the same {', '.join(part.removeprefix('the ') for part in alike)}; pass the seed on"
        return Outcome(check=SEEDS, status="failed", reason=reason + note)
    if not known:
        return Outcome(check=SEEDS, status="not possible", reason="needs two runs with different seeds" + note)
    differ = ", ".join(PARTS[part] for part in known)
    return Outcome(check=SEEDS, status="passed", reason=f"two seeds differ in {differ}{note}")


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """How well one seed repeats. `extra_sd` is to be added to the noise of a loss, in quadrature; 0 if it is small."""

    outcome: Outcome
    spread: float | None  # standard deviation of a loss over runs of one seed, in the loss's unit
    extra_sd: float


def base_repeats(losses: Sequence[float], seed_losses: Sequence[float]) -> Repeat:
    """Return how the base repeats with one seed.

    Args:
        losses: final losses of two or more runs of the base with one seed.
        seed_losses: final losses of the base with different seeds, which give the noise of seeds.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 2:
        reason = f"needs two finished runs of the base with one seed, got {len(finite)}"
        return Repeat(outcome=Outcome(check=REPEAT, status="not possible", reason=reason), spread=None, extra_sd=0.0)
    if all(loss == finite[0] for loss in finite):
        outcome = Outcome(check=REPEAT, status="passed", reason="the base repeats with the same bits")
        return Repeat(outcome=outcome, spread=0.0, extra_sd=0.0)
    spread = stdev(finite)
    seeds = [loss for loss in seed_losses if math.isfinite(loss)]
    if len(seeds) < 2:
        reason = f"one seed repeats up to {spread:.3g}, and the noise of seeds is unknown; the spread is added to it"
        return Repeat(
            outcome=Outcome(check=REPEAT, status="not possible", reason=reason), spread=spread, extra_sd=spread
        )
    noise = stdev(seeds)
    if spread < SMALL * noise:
        reason = f"one seed repeats up to {spread:.3g}, less than {SMALL:g} of the noise of seeds {noise:.3g}"
        return Repeat(outcome=Outcome(check=REPEAT, status="passed", reason=reason), spread=spread, extra_sd=0.0)
    reason = f"one seed repeats up to {spread:.3g} beside a noise of seeds of {noise:.3g}; the spread is added to it"
    return Repeat(outcome=Outcome(check=REPEAT, status="failed", reason=reason), spread=spread, extra_sd=spread)


def _shows(value: Any) -> bool:
    """Return whether a value can tell two runs apart. A loss that is not finite cannot."""
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and not any(
        each is None or (isinstance(each, float) and not math.isfinite(each)) for each in values
    )
