"""This process as a worker: whether it was asked to stop, and its place among the ranks of its stack."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from hpxfer.trial.stack import Team


class StopRequest:
    """Whether this process was asked to stop. The training then writes a checkpoint and ends.

    A worker that can ask its driver sets `look`, which is called at most every `every_s` seconds. A signal ends the
    process as well: it sets `for_good`.
    """

    def __init__(self) -> None:
        self.look: Callable[[], bool] = lambda: False
        self.every_s = 0.1
        self.is_set = self.for_good = False
        self._looked = -math.inf

    def check(self) -> bool:
        """Look, if that is due, and return whether this process was asked to stop."""
        if not self.is_set and time.monotonic() - self._looked >= self.every_s:
            self._looked = time.monotonic()
            self.is_set = self.look()
        return self.is_set

    def end(self) -> None:
        """Stop, and end the process afterwards."""
        self.is_set = self.for_good = True


STOP = StopRequest()


class Membership:
    """The team of this process, if it is one of several ranks of a stack."""

    team: Team | None = None
    store: Any = None  # of rank 0, through which the ranks find each other

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for its stack."""
        return self.team is None or self.team.rank == 0


MEMBER = Membership()
