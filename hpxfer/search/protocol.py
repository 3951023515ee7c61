"""What a search is: a pure function from the known losses to the trials that come next."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpxfer.scaling.shape import Shape
from hpxfer.trial import Trial


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: finished | diverged | stopped. `loss` is the loss that the sweep judges by, in nats.

    `seconds` is the worker time that the trial took: its part of its stack's time. None if it was not measured.
    """

    status: str
    loss: float | None = None
    seconds: float | None = None

    @property
    def value(self) -> float:
        """The loss as a search compares it: +inf unless the trial finished with a number."""
        if self.status != "finished" or self.loss is None or math.isnan(self.loss):
            return math.inf
        return self.loss


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come at one shape. It counts the search's own trials only."""

    num_done: int
    most_left: int


class Search(Protocol):
    """Chooses trials. It holds nothing that the outcomes would not give again, so a run resumes by asking anew."""

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return the trials to start now, without those in `outcomes` or `running`.

        `outcomes` maps trial ids to how they ended. It may hold trials that the search never asked for, and holds no
        failed trial. `running` holds the ids that were started or failed in this run. The search has ended when `ask`
        returns nothing and no trial is running.
        """
        ...

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> how far the search had come there at the last `ask`."""
        ...

    def why(self) -> str:
        """Return what was decided up to the last `ask` and why, one line per decision."""
        ...
