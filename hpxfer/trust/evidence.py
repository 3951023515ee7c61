"""Evidence: what a short trial has reported, and what its recipe expects of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpxfer.receipts.seeds import init_digest
from hpxfer.recipe import Recipe
from hpxfer.scaling.roles import ROLES
from hpxfer.trainer.config import recipe_of
from hpxfer.trainer.history import merged, read_earlier
from hpxfer.trainer.job import next_attempt
from hpxfer.trainer.lines import Groups, Point
from hpxfer.trial import Trial
from hpxfer.trial.result import TrialResult

Entries = list[dict[str, Any]]
_ROLE_OF = {"attn_logits": "attn_q", "route_scale": "router"}  # of a multiplier that is not named after its role


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A trial, its result, and its lines."""

    trial: Trial
    result: TrialResult
    points: tuple[Point, ...] = ()
    groups: tuple[Groups, ...] = ()
    outputs: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def read(cls, trial: Trial, result: TrialResult, runs: Path) -> Evidence:
        """Return the evidence in the folder of a trial."""
        folder = runs / trial.id
        attempts = read_earlier(folder, next_attempt(folder), trial_id=trial.id, steps=trial.setting.steps)
        return cls(
            trial=trial,
            result=result,
            points=merged(attempts),
            groups=tuple(line for each in attempts for line in each.groups),
            outputs=tuple(output for each in attempts for line in each.outputs for output in line.outputs),
        )

    @property
    def failure(self) -> str | None:
        """Why the trial has no result, in a line; None if it has one."""
        if self.result.status in ("finished", "diverged"):
            return None
        return (self.result.error or "").strip().partition("\n")[0] or "no reason is known"

    @property
    def loss(self) -> float:
        """The loss at the end: of the validation, or the last one reported. +inf if it diverged, NaN if it failed."""
        if self.result.status == "diverged":
            return math.inf
        if self.result.validation_loss_nats is not None:
            return self.result.validation_loss_nats
        return self.points[-1].loss if self.points and self.failure is None else math.nan

    @cached_property
    def receipts(self) -> dict[int, Entries]:
        """Step -> the entries of the last receipt of that step."""
        return {line.step: found for line in self.groups if (found := list(_entries(line.groups)))}

    @property
    def start(self) -> Entries:
        """The first receipt with statistics of the weights, or nothing."""
        found = ([*_entries(line.groups)] for line in self.groups if line.step == 0)
        return next((each for each in found if any(entry.get("std") is not None for entry in each)), [])

    @property
    def changes(self) -> tuple[int, Mapping[str, float]] | None:
        """The step of the first update whose changes were reported, and these; None without any."""
        return next(((line.step, line.changes) for line in self.groups if line.changes is not None), None)

    @property
    def of_seed(self) -> dict[str, Any]:
        """What a seed should decide, as far as it was reported: the initial weights, the first batch, the losses."""
        batch = next((line.batch for line in self.groups if line.batch is not None), None)
        losses = [point.loss for point in self.points]
        if self.result.validation_loss_nats is not None:
            losses.append(self.result.validation_loss_nats)
        return {"init": init_digest(self.start), "batch": batch, "loss": losses}

    @cached_property
    def expected(self) -> dict[str, dict[str, Any]] | None:
        """Role -> the numbers that the trial's recipe gives; None for an arm of the user's own."""
        if self._is_own:
            return None
        setting, found = self.trial.setting, self.trial.globals()
        betas = {"betas": (found.beta1, found.beta2)} if setting.optimizer == "adamw" else {}
        out = {role: {**asdict(numbers), **betas} for role, numbers in self.trial.resolved().items()}
        for role in out:
            if ROLES[role] == "ones":  # a gain starts at 1, or at 0 where the model multiplies by 1 + gain
                out[role]["init_std"] = None
        return out

    @cached_property
    def multipliers(self) -> dict[str, float] | None:
        """Key -> the forward multiplier that the recipe gives; None if there is no recipe.

        Those of roles that the receipts do not have are left out: the model has no such part.
        """
        found = None if self._is_own else recipe_of(self.trial)
        if found is None:
            return None
        every = Recipe.parse(found["text"]).forward_multipliers(found["shape"])
        spelled = [str(entry.get("role")) for entries in self.receipts.values() for entry in entries]
        roles = {role for each in spelled for role in each.partition("@")[0].split("+")}
        if roles <= {"None"}:
            return every
        return {key: by for key, by in every.items() if _ROLE_OF.get(key, key) in roles}

    @property
    def _is_own(self) -> bool:
        return self.trial.parameterization is not None and self.trial.parameterization.is_own


def _entries(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an entry per parameter. A group may list its `names`, with `roles` beside them or one `role` for all."""
    for group in groups:
        names, roles = group.get("names"), group.get("roles")
        if "name" in group or not isinstance(names, list):
            yield dict(group)
            continue
        of_each = roles if isinstance(roles, list) and len(roles) == len(names) else [group.get("role")] * len(names)
        for name, role in zip(names, of_each, strict=True):
            yield {**group, "name": name, "role": role}
