"""Protocol: what a search is. A pure function from what is known of its trials to those that come next."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpxfer.scaling.shape import Shape
from hpxfer.trial import Trial


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: finished | diverged | stopped. `loss` is the one that the sweep judges by, in nats."""

    status: str
    loss: float | None = None

    @property
    def value(self) -> float:
        """The loss as a search compares it: +inf unless the trial finished with a number."""
        if self.status != "finished" or self.loss is None or math.isnan(self.loss):
            return math.inf
        return self.loss


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come at one shape. Trials that a sweep which was edited left there are not the search's."""

    num_done: int  # of its own trials
    most_left: int


class Search(Protocol):
    """Chooses trials. Holds nothing that outcomes would not give again: a run is resumed by asking anew."""

    def ask(self, outcomes: Mapping[str, Outcome], out: Collection[str], most: int | None) -> Sequence[Trial]:
        """Return at most `most` trials to start now, none that is in `outcomes` or `out`.

        `outcomes` is by trial id and may hold trials that the search never asked for; failed trials are not in it.
        `out` are the ids in flight, or failed in this run. () is nothing now; when nothing is in flight: done.
        """
        ...

    def bound(self) -> Mapping[Shape, int]:
        """Return shape -> the most trials that the search may have there, those that are done included."""
        ...

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> how far the search has come there, as the last `ask` found it."""
        ...

    def why(self) -> str:
        """Return what was decided up to the last `ask` and why, a line a decision."""
        ...
