"""A stand-in for training that goes on until its worker is asked to stop, and then leaves a file as its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpxfer.executors.executor import Trains
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.process import STOP
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

KEPT = "kept"
_MOST_STEPS = 6000  # of 10 ms


@dataclass(frozen=True)
class UntilAsked(Trains):
    """Trains until it is asked to stop. A worker that finds what another one has kept ends at once."""

    folder: str

    def __call__(self, stack: Stack) -> Iterator[Event]:
        kept, step = Path(self.folder) / KEPT, 0
        while not kept.exists():
            step += 1
            assert step < _MOST_STEPS, "it was never asked to stop"
            yield Progress(tokens=1, step=step, losses=(2.0,) * len(stack.trials))
            if STOP.check():
                kept.write_text(str(step))
                return
            time.sleep(0.01)
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))
