"""Restoring: curves of trials that are trained again. The stored results stay, and must come out equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpxfer.store import Store
from hpxfer.store.losses import LOSS_NUMBERS
from hpxfer.trial.result import TrialResult

# What of a trial's row its training determines.
NUMBERS = ("status", *LOSS_NUMBERS, "diverged_step", "last_finite_loss_nats")
_MOST_NAMED = 8


@dataclass(kw_only=True)
class Restoring:
    """Compares trials that are trained again with what is stored, and stores the curves of those that are equal."""

    stored: Mapping[str, Mapping[str, Any]]  # trial id -> NUMBERS
    restored: list[str] = field(default_factory=list)  # ids
    refused: dict[str, str] = field(default_factory=dict)  # id -> why its new curves are not stored

    def take(self, store: Store, results: Sequence[TrialResult]) -> None:
        """Store the curves of those results that are equal to the stored ones."""
        equal = []
        for result in results:
            if why := self._why_not(result):
                self.refused[result.trial_id] = why
            else:
                equal.append(result)
        if equal:
            store.restore_curves(equal)
        self.restored += [result.trial_id for result in equal]

    def lines(self) -> list[str]:
        """Return what became of the trials."""
        out = [f"{len(self.restored)} trials have their curves again; all their stored results stayed as they were"]
        if self.refused:
            out.append(
                f"NOT EQUAL: {len(self.refused)} trials came out otherwise than stored. Their stored results stay, and "
                f"their new curves were not stored. Another kind of CPU or GPU, another torch or determinism: fast may "
                f"be why; train them where they were trained (`hpxfer report` has the machine of every trial)"
            )
            out += [f"  {trial_id}: {why}" for trial_id, why in list(self.refused.items())[:_MOST_NAMED]]
            if len(self.refused) > _MOST_NAMED:
                out.append(f"  and {len(self.refused) - _MOST_NAMED} more")
        return out

    def _why_not(self, result: TrialResult) -> str | None:
        if result.status == "failed":
            return f"failed: {result.error.strip().splitlines()[-1] if result.error and result.error.strip() else ''}"
        if not result.curves:
            return "has no curves"
        before = self.stored[result.trial_id]
        return next(
            (
                f"{name} is {getattr(result, name)!r}, stored is {before[name]!r}"
                for name in NUMBERS
                if not _equal(getattr(result, name), before[name])
            ),
            None,
        )


def _equal(new: Any, old: Any) -> bool:
    both = isinstance(new, float) and isinstance(old, float)
    return new == old or (both and math.isnan(new) and math.isnan(old))
