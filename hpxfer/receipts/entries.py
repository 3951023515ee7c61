"""The entries of a receipt, one per parameter, with the numbers expected of them, and the outcome of a check. Pure.

An entry is a mapping. Only `name` must be there. What is absent or None is unknown:

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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "not possible"]

# The names of the checks.
GROUPS = "parameter groups"
SCHEDULE = "schedule"
INIT = "init"
SEEDS = "seeds"
REPEAT = "repetition"
WIRED = "HP wired"
FORWARD = "forward multipliers"
ARMS = "base through two arms"
MEASURE = "same budget and loss"
# With one of these failed a verdict is about another training than the one that was asked for.
DECISIVE = (GROUPS, SEEDS)

MOST_NAMES = 5  # that a reason lists


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a check says: that all is well, what is wrong, or what is missing to tell."""

    check: str
    status: Status
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.check}: {self.status}: {self.reason}"


def undecided_because(outcomes: Iterable[Outcome]) -> str | None:
    """Return why a verdict can be `undecided` at best, or None: the groups or the seeds failed."""
    failed = [f"{each.check}: {each.reason}" for each in outcomes if each.status == "failed" and each.check in DECISIVE]
    return "; ".join(failed) or None


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MOST_NAMES} more" if len(every) > MOST_NAMES else ""
    return ", ".join(every[:MOST_NAMES]) + more


Entry = Mapping[str, Any]
Expected = Mapping[str, Mapping[str, Any]]

RELATIVE = 1e-6  # by how much two numbers that should be equal may differ


def expected_of(entry: Entry, expected: Expected) -> Mapping[str, Any] | None:
    """Return the numbers that are expected of a parameter, by its name or else by its role; None if there are none."""
    name, role = entry.get("name"), entry.get("role")
    if isinstance(name, str) and name in expected:
        return expected[name]
    return expected.get(role.partition("@")[0].partition("+")[0]) if isinstance(role, str) else None


def in_optimizer(entries: Iterable[Entry]) -> list[Entry]:
    """Return the parameters that an optimizer should hold: those of the model that need a gradient."""
    return [each for each in entries if isinstance(each.get("name"), str) and each.get("trained", True)]


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a number of an entry, or None if it is unknown."""
    return _number(entry.get(key))


def count(entry: Mapping[str, Any], key: str) -> int:
    """Return a count of an entry, at least 0, or 1 if it is unknown."""
    value = entry.get(key)
    return max(value, 0) if isinstance(value, int) else 1


def same(one: float, other: float, tolerance: float = RELATIVE) -> bool:
    """Return whether two numbers are equal up to a relative tolerance. Nothing equals a number that is not finite."""
    return math.isfinite(one) and math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)


def betas_of(entry: Mapping[str, Any]) -> Sequence[float] | None:
    """Return the betas of an entry, or None."""
    found = entry.get("betas")
    betas = [_number(each) for each in found] if isinstance(found, list | tuple) else []
    known = [each for each in betas if each is not None]
    return known if known and len(known) == len(betas) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf
