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
class Team:
    """One rank of a stack: how it finds the others, and how long it waits for them."""

    rank: int
    world: int
    address: str  # HOST:PORT of the store of rank 0
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Trials that train in one batched model. They differ in seed, parameterization, HPs and ties only.

    `pieces` of a trial's batch are computed at once: a number that divides the pieces of a lane. With `recompute`, the
    backward pass computes each block again. Both change memory and speed, and no bit.
    """

    trials: tuple[Trial, ...]
    pieces: int = 1
    recompute: bool = False

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
    def rows(self) -> tuple[Trial, ...]:
        """The trials as the model sees them: each once for every piece that is computed at once."""
        return tuple(trial for trial in self.trials for _ in range(self.pieces))

    @property
    def has_momentum(self) -> bool:
        """Whether one of its trials has momentum."""
        return any(trial.hps.momentum for trial in self.trials)


def stack_id(trial_ids: Iterable[str]) -> str:
    """Return the id of a stack of these trials, in their order."""
    return blake2b("\n".join(trial_ids).encode(), digest_size=16).hexdigest()
