"""Stack: trials of one shape and setting, but for ties, that train together in one batched model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from hpxfer.scaling.shape import Shape
from hpxfer.trial.setting import Setting
from hpxfer.trial.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Trials that train in one batched model. They differ in seed, parameterization, HPs and ties only."""

    trials: tuple[Trial, ...]

    @cached_property
    def id(self) -> str:
        """Return a hash of the ids of its trials, in their order."""
        return stack_id(trial.id for trial in self.trials)

    @property
    def shape(self) -> Shape:
        return self.trials[0].shape

    @property
    def setting(self) -> Setting:
        return self.trials[0].setting.of_stack

    @property
    def has_momentum(self) -> bool:
        """Whether one of its trials has momentum."""
        return any(trial.hps.momentum for trial in self.trials)


def stack_id(trial_ids: Iterable[str]) -> str:
    """Return the id of a stack of these trials, in their order."""
    return blake2b("\n".join(trial_ids).encode(), digest_size=16).hexdigest()
