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
    process as well: it sets `for_good`, at any moment, so that nothing else may write that.
    """

    def __init__(self) -> None:
        self.look: Callable[[], bool] = lambda: False
        self.every_s = 0.1
        self.for_good = self._asked = False
        self._looked = -math.inf

    @property
    def is_set(self) -> bool:
        """Whether this process was asked to stop, as far as it has looked."""
        return self._asked or self.for_good

    def begin(self) -> None:
        """Begin a stack: what was asked of the last one is over."""
        self._asked = False

    def check(self) -> bool:
        """Look, if that is due, and return whether this process was asked to stop."""
        if not self.is_set and time.monotonic() - self._looked >= self.every_s:
            self._looked = time.monotonic()
            self._asked = self.look()
        return self.is_set

    def end(self) -> None:
        """Stop, and end the process afterwards."""
        self.for_good = True


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
