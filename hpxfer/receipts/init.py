"""Do the initial weights have the std that the recipe says? Pure.

A sample std of n normal numbers has the relative standard error 1/sqrt(2n). A normal that is cut has a smaller std:
0.987 of the full one if it is cut at 3 sigma, and 0.880 at 2 sigma. Public code cuts at either, so these are named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpxfer.receipts.entries import Entry, Expected, count, expected_of, number
from hpxfer.receipts.outcome import INIT, Outcome, listed
from hpxfer.scaling.roles import ROLES

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
