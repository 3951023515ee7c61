"""Events: what training reports while it runs. The module needs no torch, so that drivers need none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpxfer.trial.result import Curve, TrialResult


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker began to train the stack. It is the first event, and comes again if another worker starts over."""

    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Points:
    """The parts of curves at the steps from `first` up to and without `stop`.

    They are what the curves of the results will hold there. A training that goes on from a checkpoint reports the
    points before it again, from step 0.
    """

    first: int
    stop: int
    curves: Mapping[str, tuple[Curve, ...]]  # by trial id, of every trial of the report


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a stack has done since its last report. If a worker is lost, the next one reports its steps again."""

    tokens: int  # training tokens since the last report, trained or saved by an early stop
    step: int | None = None  # steps done since the start of the training
    losses: tuple[float, ...] = ()  # the last training loss of each trial in nats; NaN if it has diverged
    points: Points | None = None  # if the training was asked for them


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A stack has ended. The last of its events, and the only one with results."""

    results: tuple[TrialResult, ...]  # one per trial of the stack, in their order


Event = Started | Progress | Ended
