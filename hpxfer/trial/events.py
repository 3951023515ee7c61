"""What training reports while it runs. Knows no torch, so that drivers need none."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.trial.result import TrialResult


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker took the stack up. First of its events, and again where it is tried anew after a lost worker."""

    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a stack has done since its last report. A stack that is tried anew repeats what the lost worker did."""

    tokens: int  # training tokens, done or spared by an early stop
    step: int | None = None  # steps done in all
    losses: tuple[float, ...] = ()  # the last training loss of each trial in nats; NaN once it has diverged


# The results of all trials are the last word on a stack.
Event = Started | Progress | tuple[TrialResult, ...]
