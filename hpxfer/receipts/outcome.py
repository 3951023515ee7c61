"""The outcome of a check, and when it leaves a verdict undecided. Pure."""

from __future__ import annotations

from collections.abc import Iterable
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
