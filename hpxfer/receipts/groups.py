"""Do parameter groups, initial weights and schedule of a training hold what the recipe says? Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from hpxfer.receipts.entries import (
    GROUPS,
    INIT,
    RELATIVE,
    SCHEDULE,
    Entry,
    Expected,
    Outcome,
    Status,
    betas_of,
    count,
    expected_of,
    in_optimizer,
    listed,
    number,
    same,
)
from hpxfer.scaling.roles import ROLES


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


NUMBERS = ("eps", "weight_decay")


def groups_match(
    groups: Sequence[Entry], expected: Expected, *, factor: float | None = 1.0, tolerance: float = RELATIVE
) -> Outcome:
    """Return whether every parameter is held once, with the LR, eps, weight decay and betas that are expected.

    Args:
        groups: the entries of a receipt (see `hpxfer.receipts.entries`).
        expected: name or role -> `lr` (the peak), `eps`, `weight_decay`, `betas`. A number that is None or absent is
            not compared.
        factor: that of the schedule at this step. An entry with `peak_lr` is compared by that instead. None: unknown,
            so that the LRs are compared up to one common factor.
        tolerance: relative.
    """
    if not groups:
        return _outcome("not possible", "the training reported no groups; call hpxfer.receipt in it")
    if faults := [*_not_once(groups), *_lost(groups, expected)]:
        return _outcome("failed", "; ".join(faults))
    trained = in_optimizer(groups)
    pairs = [(each, found) for each in trained if (found := expected_of(each, expected)) is not None]
    if not pairs:
        return _outcome("not possible", "no parameter has a role or a name with expected numbers; give roles")
    scale = _median_ratio(pairs) if factor is None else factor
    wrong = [text for entry, found in pairs for text in _differences(entry, found, scale, tolerance)]
    if wrong:
        return _outcome("failed", listed(wrong))
    if len(pairs) < len(trained):
        known = {id(entry) for entry, _ in pairs}
        without = [str(each["name"]) for each in trained if id(each) not in known]
        return _outcome("not possible", f"nothing is expected of {listed(without)}, which have no role; give roles")
    if not any(number(entry, "lr") is not None for entry, _ in pairs):
        return _outcome("not possible", "the reported groups have no lr")
    return _outcome("passed", f"{len(pairs)} parameters, each once, with the numbers of the recipe")


def _outcome(status: Status, reason: str) -> Outcome:
    return Outcome(check=GROUPS, status=status, reason=reason)


def _not_once(groups: Sequence[Entry]) -> Iterator[str]:
    """Yield which parameters are held not at all, or more than once, and tensors that belong to no parameter."""
    names = Counter(str(each["name"]) for each in groups if each.get("name") is not None)
    counts = {str(each["name"]): count(each, "held") for each in in_optimizer(groups)}
    if missing := [name for name, held in counts.items() if held == 0]:
        yield f"no group holds {listed(missing)}"
    if doubled := [name for name, held in counts.items() if held > 1 or names[name] > 1]:
        yield f"more than one group holds {listed(doubled)}"
    if strangers := [each for each in groups if each.get("name") is None]:
        yield f"the optimizer holds {len(strangers)} tensors that are no parameters of the model"


def _lost(groups: Sequence[Entry], expected: Expected) -> Iterator[str]:
    """Yield the expected parameters that the receipt does not have. Roles are no names, and may be absent."""
    names = {str(each.get("name")) for each in groups}
    trained = [name for name, found in expected.items() if number(found, "lr") is not None]
    lost = [name for name in trained if name not in names and name not in ROLES]
    if lost:
        yield f"the receipt does not have {listed(lost)}"


def common_factor(groups: Sequence[Entry], expected: Expected) -> float | None:
    """Return the factor of the schedule by which most LRs differ from those expected, or None if none is known."""
    return _median_ratio(
        [(each, found) for each in in_optimizer(groups) if (found := expected_of(each, expected)) is not None]
    )


def _median_ratio(pairs: Sequence[tuple[Entry, Entry]]) -> float | None:
    """Return the median of LR over expected LR, or None if all LRs are zero or unknown."""
    ratios = [
        held / wanted
        for entry, found in pairs
        if (held := number(entry, "lr")) is not None and (wanted := number(found, "lr"))
    ]
    return median(ratios) if any(ratios) else None


def _differences(entry: Entry, found: Entry, factor: float | None, tolerance: float) -> Iterator[str]:
    """Yield which numbers of a parameter are not as expected."""
    name = entry["name"]
    peak, wanted = number(entry, "peak_lr"), number(found, "lr")
    held = number(entry, "lr") if peak is None else peak
    scale = factor if peak is None else 1.0
    if held is not None and wanted is not None and scale is not None and not same(held, wanted * scale, tolerance):
        yield f"{name} has lr {held:.6g} in place of {wanted * scale:.6g}"
    for key in NUMBERS:
        has, should = number(entry, key), number(found, key)
        if has is not None and should is not None and not same(has, should, tolerance):
            yield f"{name} has {key} {has:.6g} in place of {should:.6g}"
    betas, right = betas_of(entry), betas_of(found)
    if betas is not None and right is not None:
        alike = len(betas) == len(right) and all(same(a, b, tolerance) for a, b in zip(betas, right, strict=True))
        if not alike:
            yield f"{name} has betas {tuple(betas)} in place of {tuple(right)}"


# Do the initial weights have the std that the recipe says? Pure.
#
# A sample std of n normal numbers has the relative standard error 1/sqrt(2n). A normal that is cut has a smaller std:
# 0.987 of the full one if it is cut at 3 sigma, and 0.880 at 2 sigma. Public code cuts at either, so these are named.

SHARE = 0.03
SIGMAS = 5.0
# So rarely may a normal have no element beyond the cut for the cut to be believed.
CHANCE = 1e-6

_CONSTANTS: Mapping[float | str, tuple[float, ...]] = {"ones": (1.0,), "zeros": (0.0,), "gain": (1.0, 0.0)}


def std_of_cut(cut: float) -> float:
    """Return the std of a standard normal that is cut at -cut and cut."""
    inside, height = math.erf(cut / math.sqrt(2)), math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cut * height / inside)


# Where public code cuts, in standard deviations of the full normal -> the std of what is left.
CUTS = {cut: std_of_cut(cut) for cut in (2.0, 3.0)}


def tolerance_of(numel: int) -> float:
    """Return by which share the sample std of so many normal numbers may differ from the true one."""
    return max(SHARE, SIGMAS / math.sqrt(2 * numel))


def init_matches(groups: Sequence[Entry], expected: Expected) -> Outcome:
    """Return whether the weights start as expected: the std of matrices, and the constants of gains and biases.

    Args:
        groups: the entries of a receipt with `init=True`, taken before the first update and after all wrapping.
        expected: name or role -> `init_std`, or `init`: a std, `ones` or `zeros` as `recipe.explain` has it. A gain
            whose expected std is 0 starts at 1, or at 0 if it is of the kind 1 + w, which its role does not say.
    """
    asked = [
        (each, wanted)
        for each in groups
        if number(each, "std") is not None and (wanted := _wanted(each, expected)) is not None
    ]
    if not asked:
        reason = "no receipt has the std of a parameter with expected numbers; call hpxfer.receipt(..., init=True)"
        return Outcome(check=INIT, status="not possible", reason=reason)
    wrong = [text for entry, wanted in asked if (text := _fault(entry, wanted)) is not None]
    if wrong:
        return Outcome(check=INIT, status="failed", reason=listed(wrong))
    return Outcome(check=INIT, status="passed", reason=f"{len(asked)} parameters start as the recipe says")


def _wanted(entry: Entry, expected: Expected) -> float | str | None:
    found = expected_of(entry, expected)
    if found is None:
        return None
    if found.get("init") in ("ones", "zeros"):
        return str(found["init"])
    std = number(found, "init")
    std = number(found, "init_std") if std is None else std
    is_gain = ROLES.get(str(entry.get("role")).partition("@")[0]) == "ones"
    return "gain" if is_gain and std == 0.0 else std


def _fault(entry: Entry, wanted: float | str) -> str | None:
    """Return what is wrong with the start of a parameter, or None."""
    name, std, mean = entry.get("name"), number(entry, "std") or 0.0, number(entry, "mean")
    if wanted in _CONSTANTS or wanted == 0.0:
        constants = _CONSTANTS.get(wanted, (0.0,))
        if std == 0.0 and (mean is None or mean in constants):
            return None
        at = "" if mean is None else f" about {mean:.4g}"
        return f"{name} has std {std:.4g}{at} in place of the constant {' or '.join(f'{one:g}' for one in constants)}"
    assert isinstance(wanted, float)
    ratio, numel = std / wanted, max(count(entry, "numel"), 1)
    if cut := _cut_at(ratio, numel, number(entry, "largest"), wanted):
        return (
            f"{name} is a normal cut at {cut:g} sigma, with {CUTS[cut]:.3f} of the std; divide by that, or cut nothing"
        )
    if std == 0.0 or not abs(ratio - 1) <= tolerance_of(numel):
        return f"{name} has std {std:.4g} in place of {wanted:.4g}, {ratio:.4g} of it"
    return None


def _cut_at(ratio: float, numel: int, largest: float | None, wanted: float) -> float | None:
    """Return where the normal is cut, or None if nothing shows that it is.

    The largest element shows it if that many normal numbers would surely go beyond. Without it the std must be lower
    than chance allows a full normal.
    """
    noise = 1 / math.sqrt(2 * float(numel))
    for cut, share in CUTS.items():
        if abs(ratio - share) > SIGMAS * noise:
            continue
        beyond = math.erfc(cut / math.sqrt(2))
        if largest is not None:
            if largest <= cut * wanted * (1 + 1e-3) and numel * math.log1p(-beyond) < math.log(CHANCE):
                return cut
        elif 1 - ratio > SIGMAS * noise:
            return cut
    return None
