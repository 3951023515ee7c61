"""Do the parameter groups of a training hold what the recipe says? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from hpxfer.receipts.entries import RELATIVE, Entry, Expected, betas_of, count, expected_of, in_optimizer, number, same
from hpxfer.receipts.outcome import GROUPS, Outcome, Status, listed
from hpxfer.scaling.roles import ROLES

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
