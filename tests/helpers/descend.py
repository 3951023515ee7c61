"""Descend: a stand-in for training that early stopping can be tested on. Importable by name, as workers need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.executors.executor import Stopping, Trains
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


@dataclass(frozen=True)
class Descend(Trains):
    """A loss that is the seed's, from the first rung to the end."""

    stopping: Stopping

    def __call__(self, stack: Stack) -> Iterator[Event]:
        losses = tuple(2.0 + trial.seed for trial in stack.trials)
        for step in self.stopping.rungs(stack.setting.steps):
            yield Progress(tokens=1, step=step, losses=losses)
        results = (
            TrialResult(trial_id=trial.id, status="finished", validation_loss_nats=loss)
            for trial, loss in zip(stack.trials, losses, strict=True)
        )
        yield Ended(results=tuple(results))
