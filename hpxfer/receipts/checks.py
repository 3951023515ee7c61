"""Checks: is a training what its recipe and its seed say? Each check gives one outcome, from plain data. Pure.

An entry of a receipt is a mapping, one per parameter. Only `name` must be there. What is absent or None is unknown:

    name            dotted name without wrappers; None: a tensor of the optimizer that is no parameter of the model
    role            e.g. attn_q, or attn_q+attn_k for a tensor with several matrices
    numel           number of elements
    trained         whether it needs a gradient; default: true
    held            how many times the optimizer holds it; default: once
    lr, eps, weight_decay, betas        of its group, at this step; `peak_lr` too, if the group has it
    std, mean, largest, digest          of its elements: standard deviation, mean, largest magnitude, hash of the bits

Expected numbers are looked up by name, else by role: `{"attn_q": {"init_std": 0.02, "lr": 1e-3, "eps": 1e-8, ...}}`.
The values of `recipe.explain(model).to_dict()` by name fit, and `asdict` of a trial's resolved values by role.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, stdev
from typing import Any, NamedTuple

from hpxfer.recipe import AT, proposals
from hpxfer.scaling.numbers import JOIN
from hpxfer.scaling.roles import ROLES
from hpxfer.store import Outcome, Status

# The names of the checks.
GROUPS, SCHEDULE, INIT, FORWARD = "parameter groups", "schedule", "init", "forward multipliers"
SEEDS, REPEAT, WIRED = "seeds", "repetition", "HP wired"
ARMS, MEASURE = "base through two arms", "same budget and loss"

Entry = Mapping[str, Any]
Expected = Mapping[str, Mapping[str, Any]]
MOST_NAMES = 5  # that a reason lists
RELATIVE = 1e-6  # by how much two numbers that should be equal may differ
SIGMAS = 5.0  # standard errors within which a sample std may lie


def _outcome(check: str, status: Status, reason: str) -> Outcome:
    return Outcome(check=check, status=status, reason=reason)


def not_possible(check: str, reason: str) -> Outcome:
    """Return the outcome of a check that lacks something to tell."""
    return _outcome(check, "not possible", reason)


def groups_match(
    groups: Sequence[Entry], expected: Expected, *, factor: float | None = 1.0, tolerance: float = RELATIVE
) -> Outcome:
    """Return whether every parameter is held once, with the LR, eps, weight decay and betas that are expected.

    `expected` has the peak of each LR, and `factor` is that of the schedule at this step; None: unknown, so that LRs
    are compared up to one common factor. An entry with `peak_lr` is compared by that instead.
    """
    if not groups:
        return not_possible(GROUPS, "the training reported no groups; call hpxfer.receipt in it")
    trained, pairs = _trained(groups), _pairs(groups, expected)
    names = Counter(str(each["name"]) for each in groups if each.get("name") is not None)
    counts = {str(each["name"]): max(count, 0) if isinstance(count := each.get("held"), int) else 1 for each in trained}
    wanted = [name for name, found in expected.items() if number(found, "lr") is not None and name not in ROLES]
    strangers = sum(each.get("name") is None for each in groups)
    faults = {
        "no group holds": [name for name, held in counts.items() if held == 0],
        "more than one group holds": [name for name, held in counts.items() if held > 1 or names[name] > 1],
        "the optimizer holds": [f"{strangers} tensors that are no parameters of the model"] if strangers else [],
        "the receipt does not have": [name for name in wanted if name not in names],
    }
    if any(faults.values()):
        return _outcome(GROUPS, "failed", "; ".join(f"{what} {listed(of)}" for what, of in faults.items() if of))
    if not pairs:
        return not_possible(GROUPS, "no parameter has a role or a name with expected numbers; give roles")
    scale = common_factor(groups, expected) if factor is None else factor
    if wrong := [text for entry, found in pairs for text in _differences(entry, found, scale, tolerance)]:
        return _outcome(GROUPS, "failed", listed(wrong))
    if len(pairs) < len(trained):
        without = [str(each["name"]) for each in trained if not any(each is entry for entry, _ in pairs)]
        return not_possible(GROUPS, f"nothing is expected of {listed(without)}, which have no role; give roles")
    if all(number(entry, "lr") is None for entry, _ in pairs):
        return not_possible(GROUPS, "the reported groups have no lr")
    return _outcome(GROUPS, "passed", f"{len(pairs)} parameters, each once, with the numbers of the recipe")


def common_factor(groups: Sequence[Entry], expected: Expected) -> float | None:
    """Return the median factor of the LRs over those expected, or None if all LRs are zero or unknown."""
    ratios = [
        held / wanted
        for entry, found in _pairs(groups, expected)
        if (held := number(entry, "lr")) is not None and (wanted := number(found, "lr"))
    ]
    return median(ratios) if any(ratios) else None


def _differences(entry: Entry, found: Entry, factor: float | None, tolerance: float) -> Iterator[str]:
    """Yield which numbers of a parameter are not as expected."""
    keys = ("lr", "eps", "weight_decay")
    held, wanted = ({key: number(of, key) for key in keys} for of in (entry, found))
    if (peak := number(entry, "peak_lr")) is not None:
        held["lr"], factor = peak, 1.0
    wanted["lr"] = None if factor is None or wanted["lr"] is None else wanted["lr"] * factor
    for key in keys:
        has, should = held[key], wanted[key]
        if has is not None and should is not None and not _same(has, should, tolerance):
            yield f"{entry['name']} has {key} {has:.6g} in place of {should:.6g}"
    betas, right = (_numbers(of.get("betas")) for of in (entry, found))
    if betas and right and (len(betas) != len(right) or not all(map(_same, betas, right))):
        yield f"{entry['name']} has betas {betas} in place of {right}"


def schedule_keeps_ratios(receipts: Sequence[Mapping[str, Any]], *, tolerance: float = RELATIVE) -> Outcome:
    """Return whether the LR of every parameter is the same multiple of its own peak at each step.

    An absolute floor, or one LR for all groups, undoes a parameterization during warm-up or decay. `receipts` are
    `{"step": s, "groups": [...]}`, at best of a warm-up step, of the peak and of the last step.
    """
    by_step = dict[int, dict[str, float]]()
    for each in receipts:
        found = ((str(entry["name"]), number(entry, "lr")) for entry in _trained(each["groups"]))
        if rates := {name: rate for name, rate in found if rate is not None}:
            by_step[int(each["step"])] = rates
    if len(by_step) < 2:
        reason = f"needs receipts of at least 2 steps with LRs, got {len(by_step)}; report warm-up, peak and last step"
        return not_possible(SCHEDULE, reason)
    names = set.intersection(*map(set, by_step.values()))
    if lost := sorted({name for rates in by_step.values() for name in rates} - names):
        return _outcome(SCHEDULE, "failed", f"not in the receipt of every step: {listed(lost)}")
    peak = max(by_step.values(), key=lambda rates: sum(rates.values()))
    top = {name: rate for name, rate in peak.items() if rate > 0}
    if not top:
        return not_possible(SCHEDULE, "every LR is 0 in every receipt")
    for step, rates in sorted(by_step.items()):
        factors = {name: rates[name] / rate for name, rate in top.items()}
        common = median(factors.values())
        if wrong := [f"{name} {by:.4g}" for name, by in factors.items() if not _same(by, common, tolerance)]:
            reason = f"at step {step} the LR is {common:.4g} of the peak for most, and otherwise for {listed(wrong)}"
            return _outcome(SCHEDULE, "failed", reason)
    steps = ", ".join(map(str, sorted(by_step)))
    return _outcome(SCHEDULE, "passed", f"one factor for all {len(top)} parameters at steps {steps}")


# A sample std of n normal numbers has the relative standard error 1/sqrt(2n). A normal that is cut has a smaller std:
# 0.987 of the full one if it is cut at 3 sigma, and 0.880 at 2 sigma. Public code cuts at either, so these are named.
SHARE = 0.03
# So rarely may a normal have no element beyond the cut for the cut to be believed.
CHANCE = 1e-6


def _std_of_cut(cut: float) -> float:
    """Return the std of a standard normal that is cut at -cut and cut."""
    inside, height = math.erf(cut / math.sqrt(2)), math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cut * height / inside)


# Where public code cuts, in standard deviations of the full normal -> the std of what is left.
CUTS = {cut: _std_of_cut(cut) for cut in (2.0, 3.0)}


def init_matches(groups: Sequence[Entry], expected: Expected) -> Outcome:
    """Return whether the weights start as expected: the std of matrices, and the constants of gains and biases.

    The receipt must be taken with `init=True`, before the first update and after all wrapping. What is expected is
    `init_std`, or `init`: a std, `ones` or `zeros` as `recipe.explain` has it. A gain whose expected std is 0 starts at
    1, or at 0 if it is of the kind 1 + w, which its role does not say.
    """
    wrong, count = [], 0
    for entry in groups:
        std, found = number(entry, "std"), _expected_of(entry, expected) or {}
        wanted = number(found, "init")
        wanted = number(found, "init_std") if wanted is None else wanted
        is_gain = ROLES.get(str(entry.get("role")).partition(AT)[0]) == "ones"
        constants: list[float] = {"ones": [1.0], "zeros": [0.0]}.get(str(found.get("init")), [])
        if not constants and wanted == 0.0:
            constants = [1.0, 0.0] if is_gain else [0.0]
        if std is not None and (constants or wanted is not None):
            count += 1
            fault = _not_constant(entry, std, constants) if constants else _not_normal(entry, std, wanted or 0.0)
            wrong += [fault] if fault else []
    if not count:
        reason = "no receipt has the std of a parameter with expected numbers; call hpxfer.receipt(..., init=True)"
        return not_possible(INIT, reason)
    if wrong:
        return _outcome(INIT, "failed", listed(wrong))
    return _outcome(INIT, "passed", f"{count} parameters start as the recipe says")


def _not_constant(entry: Entry, std: float, constants: Sequence[float]) -> str | None:
    mean, right = number(entry, "mean"), " or ".join(f"{one:g}" for one in constants)
    about = "" if mean is None else f" about {mean:.4g}"
    is_right = std == 0.0 and (mean is None or mean in constants)
    return None if is_right else f"{entry.get('name')} has std {std:.4g}{about} in place of the constant {right}"


def _not_normal(entry: Entry, std: float, wanted: float) -> str | None:
    """Return what is wrong with the start of a matrix, or None.

    The largest element shows that a normal is cut if that many numbers would surely go beyond. Without it the std must
    be lower than chance allows a full normal.
    """
    name, ratio, largest = entry.get("name"), std / wanted, number(entry, "largest")
    numel = max(count, 1) if isinstance(count := entry.get("numel"), int) else 1
    noise = SIGMAS / math.sqrt(2 * float(numel))
    for cut, share in CUTS.items():
        sure = numel * math.log1p(-math.erfc(cut / math.sqrt(2))) < math.log(CHANCE)
        is_cut = 1 - ratio > noise if largest is None else sure and largest <= cut * wanted * (1 + 1e-3)
        if is_cut and abs(ratio - share) <= noise:
            return (
                f"{name} is a normal cut at {cut:g} sigma, with {share:.3f} of the std; divide by that, or do not cut"
            )
    if std == 0.0 or not abs(ratio - 1) <= max(SHARE, noise):
        return f"{name} has std {std:.4g} in place of {wanted:.4g}, {ratio:.4g} of it"
    return None


def forward_factors(
    outputs: Sequence[Mapping[str, Any]], expected: Mapping[str, float], *, tolerance: float = 1e-3
) -> Outcome:
    """Return whether every multiplier acts once, by the ratio of an output with it and without it.

    An output is `{"key": "readout", "mode": "train", "with": 0.5, "without": 1.0}`: the RMS at the site of the
    multiplier, on one batch and with the same weights, in mode `train` or `eval`. `expected` is key -> the multiplier.
    """
    seen, wrong = set[str](), []
    for each in outputs:
        key, with_it, without = str(each.get("key")), number(each, "with"), number(each, "without")
        if key not in expected or with_it is None or not without:
            continue
        seen.add(key)
        ratio, by = with_it / without, expected[key]
        if not _same(ratio, by, tolerance):
            guesses = {" (missing)": 1.0, " (applied twice)": by**2}
            guess = next((words for words, value in guesses.items() if _same(ratio, value, tolerance)), "")
            wrong.append(f"{key} in {each.get('mode', 'train')} multiplies by {ratio:.4g} in place of {by:.4g}{guess}")
    if wrong:
        return _outcome(FORWARD, "failed", listed(wrong))
    if unseen := [key for key, by in expected.items() if by != 1.0 and key not in seen]:
        return not_possible(FORWARD, f"no output with and without it was reported for {listed(unseen)}")
    return _outcome(FORWARD, "passed", f"{len(seen)} multipliers act once")


PARTS = {"init": "the initial weights", "batch": "the first batch", "loss": "the loss"}


def init_digest(groups: Sequence[Entry]) -> str | None:
    """Return one hash of all initial weights in a receipt, or None if it has none."""
    found = sorted((str(each.get("name")), str(each["digest"])) for each in groups if each.get("digest") is not None)
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest() if found else None


def seeds_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> Outcome:
    """Return whether two runs that differ in the seed alone differ in init, first batch and loss.

    If the seed is ignored, the scatter of seeds is 0 and a verdict is falsely sure. `one` and `other` have `init` and
    `batch`, any values that are equal for equal bits, and `loss`, a number or a list. What is absent is unknown.
    """
    known = [part for part in PARTS if _shows(one.get(part)) and _shows(other.get(part))]
    alike = [PARTS[part].removeprefix("the ") for part in known if one[part] == other[part]]
    unknown = [PARTS[part] for part in PARTS if part not in known]
    note = f"; not reported: {', '.join(unknown)}" if unknown else ""
    if alike:
        return _outcome(SEEDS, "failed", f"two seeds have the same {', '.join(alike)}; pass the seed on{note}")
    if not known:
        return not_possible(SEEDS, f"needs two runs with different seeds{note}")
    return _outcome(SEEDS, "passed", f"two seeds differ in {', '.join(PARTS[part] for part in known)}{note}")


def _shows(value: Any) -> bool:
    """Return whether a value can tell two runs apart. A loss that is not finite cannot."""
    values = value if isinstance(value, list | tuple) else [value]
    unclear = (each is None or (isinstance(each, float) and not math.isfinite(each)) for each in values)
    return bool(values) and not any(unclear)


SMALL = 0.3  # of the noise of seeds


class Repeat(NamedTuple):
    """How well one seed repeats, with the outcome of the check."""

    outcome: Outcome
    spread: float | None  # standard deviation of a loss over runs of one seed, in the loss's unit
    extra_sd: float  # to be added to the noise of a loss, in quadrature; 0 if it is small


def base_repeats(losses: Sequence[float], seed_losses: Sequence[float]) -> Repeat:
    """Return how the base repeats with one seed. If it does not, the noise is larger than the scatter of seeds says.

    `losses` are the final ones of two or more runs of the base with one seed, and `seed_losses` those of different
    seeds, which give the noise of seeds.
    """
    finite, seeds = ([loss for loss in each if math.isfinite(loss)] for each in (losses, seed_losses))
    if len(finite) < 2:
        reason = f"needs two finished runs of the base with one seed, got {len(finite)}"
        return Repeat(not_possible(REPEAT, reason), None, 0.0)
    if len(set(finite)) == 1:
        return Repeat(_outcome(REPEAT, "passed", "the base repeats with the same bits"), 0.0, 0.0)
    spread, noise = stdev(finite), stdev(seeds) if len(seeds) > 1 else None
    repeats = f"one seed repeats up to {spread:.3g}"
    if noise is None:
        reason = f"{repeats}, and the noise of seeds is unknown; the spread is added to it"
        return Repeat(not_possible(REPEAT, reason), spread, spread)
    if spread < SMALL * noise:
        reason = f"{repeats}, less than {SMALL:g} of the noise of seeds {noise:.3g}"
        return Repeat(_outcome(REPEAT, "passed", reason), spread, 0.0)
    reason = f"{repeats} beside a noise of seeds of {noise:.3g}; the spread is added to it"
    return Repeat(_outcome(REPEAT, "failed", reason), spread, spread)


# The matrices that end a branch. They have a gradient at the first step, unless the readout starts at zero.
ENDS = ("attn_out", "expert_out", "shared_out", "dense_out")


def hp_is_wired(
    at_lr: Mapping[str, float],
    at_twice: Mapping[str, float],
    groups: Sequence[Entry] = (),
    *,
    tolerance: float = 0.02,  # float32 rounds a step of 1e-5 beside a weight of order 1 by 0.6%
) -> Outcome:
    """Return whether the first step of Adam doubles for every parameter when the LR doubles, and every role learns.

    `at_lr` and `at_twice` are name -> RMS of the change by one update, as `changes_since` gives it, with one seed and
    batch and a factor of the schedule above 0. `groups` is the receipt of this update at the LR, for roles: names say
    them otherwise. Weight decay doubles with the LR too, so that a parameter that moves by its decay alone is one
    without a gradient; `std` and `mean` of the start tell that. If no matrix of a role has a gradient, the check is
    failed if nothing but that explains it, and not possible if a matrix that starts at zero behind it does.
    """
    if lost := sorted(set(at_lr) ^ set(at_twice)):
        return _outcome(WIRED, "failed", f"only one of the two runs changed {listed(lost)}")
    decayed = {str(each.get("name")) for each in groups if _decays_alone(each, at_lr, tolerance)}
    moved = [name for name in at_lr if (at_lr[name] or at_twice[name]) and name not in decayed]
    if not moved:
        reason = "no parameter learned: the schedule starts at 0, or nothing was trained; compare a later step"
        return not_possible(WIRED, reason)
    wrong = [
        f"{name} by {at_twice[name] / at_lr[name]:.3g}" if at_lr[name] else f"{name} from 0"
        for name in moved
        if not _same(at_twice[name], 2 * at_lr[name], tolerance)
    ]
    if wrong:
        return _outcome(WIRED, "failed", f"twice the LR must double the first step, got {listed(wrong)}")
    roles = {name: found.role for name, found in proposals(dict.fromkeys(at_lr)).items()}
    roles |= {str(each.get("name")): role for each in groups if isinstance(role := each.get("role"), str)}
    parts = {name: role.partition(AT)[0].split(JOIN) for name, role in roles.items()}
    matrices = {
        name: of for name, of in parts.items() if all(ROLES.get(each) not in ("ones", "zeros", None) for each in of)
    }
    still = [name for name in at_lr if name not in set(moved)]
    note = f"; without a gradient: {listed(still)}" if still else ""
    alive = {role for name in moved for role in matrices.get(name, ())}
    dead = dict.fromkeys(role for name in still for role in matrices.get(name, ()) if role not in alive)
    if alive.intersection(ENDS) and dead.keys() & set(ENDS):
        return _outcome(WIRED, "failed", f"no matrix of the roles {listed(dead)} has a gradient{note}")
    if dead:
        why = "compare a later step if a matrix behind them starts at zero"
        reason = f"no matrix of the roles {listed(dead)} has a gradient, so that nothing shows their LR; {why}{note}"
        return not_possible(WIRED, reason)
    return _outcome(WIRED, "passed", f"twice the LR doubles the first step of {len(moved)}{note}")


def _decays_alone(entry: Entry, changes: Mapping[str, float], tolerance: float) -> bool:
    """Return whether the change of a parameter is what weight decay takes of it."""
    rate, decay, std = (number(entry, key) for key in ("lr", "weight_decay", "std"))
    change = changes.get(str(entry.get("name")))
    if not rate or not decay or not std or not change:
        return False
    return _same(change, rate * decay * math.hypot(std, number(entry, "mean") or 0.0), tolerance)


def arms_agree(losses: Mapping[str, float], *, spread: float = 0.0) -> Outcome:
    """Return whether the base has one loss through all arms. If not, the trainer scales by itself.

    At the base every factor is 1, so that all arms are one model. `losses` are of one seed and the same HPs, by arm.
    They may differ by three standard deviations: `spread` is that of a loss over runs of one seed, see `base_repeats`.
    """
    finite = {arm: loss for arm, loss in losses.items() if math.isfinite(loss)}
    if len(finite) < 2:
        return not_possible(ARMS, f"needs the base through two arms, got {len(finite)} finished")
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    if finite[high] - finite[low] > 3.0 * math.sqrt(2) * spread:
        ends = f"the base ends at {finite[low]:.6g} through {low} and at {finite[high]:.6g} through {high}"
        why = "the trainer scales by itself, or the arms differ in more than their factors"
        return _outcome(ARMS, "failed", f"{ends}; {why}")
    return _outcome(ARMS, "passed", f"the base has one loss through {', '.join(sorted(finite))}")


def same_measure(runs: Sequence[Mapping[str, Any]]) -> Outcome:
    """Return whether runs that are compared have the tokens that they claim, one set of held-out tokens and one unit.

    A run has a `name`, and what is known of `tokens` (trained on), `steps`, `batch_tokens`, `eval_digest` and
    `loss_name`. Runs along an axis of duration are no such set.
    """
    wrong = []
    for each in runs:
        tokens, steps, batch = (number(each, key) for key in ("tokens", "steps", "batch_tokens"))
        if tokens is not None and steps is not None and batch is not None and tokens != steps * batch:
            wrong.append(f"{each.get('name')} has {tokens:.12g} tokens in place of {steps:g} x {batch:g}")
    keys = ("tokens", "eval_digest", "loss_name")
    told = {key: {each[key] for each in runs if each.get(key) is not None} for key in keys}
    wrong += [f"{key}: {', '.join(sorted(map(str, values)))}" for key, values in told.items() if len(values) > 1]
    if wrong:
        return _outcome(MEASURE, "failed", f"must be one for all runs: {listed(wrong)}")
    if len(runs) < 2 or not any(told.values()):
        return not_possible(MEASURE, "needs two runs that report their tokens and loss")
    return _outcome(MEASURE, "passed", f"{len(runs)} runs have the same tokens, data and loss")


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MOST_NAMES} more" if len(every) > MOST_NAMES else ""
    return ", ".join(every[:MOST_NAMES]) + more


def _same(one: float, other: float, tolerance: float = RELATIVE) -> bool:
    """Return whether two numbers are equal up to a relative tolerance. Nothing equals a number that is not finite."""
    return math.isfinite(one) and math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a number of an entry, or None if it is unknown."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf


def _numbers(values: Any) -> tuple[float, ...] | None:
    """Return the numbers of a list, or None if there are none, or any is unknown."""
    found = [number({"": each}, "") for each in values] if isinstance(values, list | tuple) else []
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else None


def _trained(entries: Iterable[Entry]) -> list[Entry]:
    """Return the parameters that an optimizer should hold: those of the model that need a gradient."""
    return [each for each in entries if isinstance(each.get("name"), str) and each.get("trained", True)]


def _expected_of(entry: Entry, expected: Expected) -> Mapping[str, Any] | None:
    """Return the numbers that are expected of a parameter, by its name or else by its role; None if there are none."""
    name, role = entry.get("name"), entry.get("role")
    if isinstance(name, str) and name in expected:
        return expected[name]
    return expected.get(role.partition(AT)[0].partition(JOIN)[0]) if isinstance(role, str) else None


def _pairs(entries: Iterable[Entry], expected: Expected) -> list[tuple[Entry, Mapping[str, Any]]]:
    """Return the trained parameters of which something is expected, each with that."""
    return [(each, found) for each in _trained(entries) if (found := _expected_of(each, expected)) is not None]
