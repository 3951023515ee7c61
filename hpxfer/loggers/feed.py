"""Feed: what one logger has still to write, and the thread in which it writes.

The driver puts curves into a feed and never waits. A logger that is slow gets more points at once. A logger that fails
is left out from then on, with one warning. So is one that falls behind by more than MOST_POINTS points: no points are
lost in silence.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from hpxfer.errors import first_line
from hpxfer.loggers.kinds import WHERE
from hpxfer.loggers.logger import Final, LoggedTrial, Logger, OpenTrial
from hpxfer.loggers.points import by_step
from hpxfer.trial.result import Curve

# The points that may wait for a logger. In memory they take about 100 bytes each.
MOST_POINTS = 1_000_000
# At the end of a run a logger has as long as it needs, but must write something this often.
IDLE_S = 60.0
# How long a run that waits for its loggers is silent about it.
QUIET_S = 10.0
_POLL_S = 0.2

_log = logging.getLogger(__name__)


@dataclass
class _Waiting:
    """What waits to be written of a trial."""

    trial: LoggedTrial
    curves: list[Curve] = field(default_factory=list)
    final: Final | None = None


class Feed:
    """A logger in its own thread. No method waits for it but `finish`."""

    def __init__(
        self, name: str, logger: Logger, *, most_open: int | None = None, most_points: int = MOST_POINTS
    ) -> None:
        self.name = name
        self._logger, self._most_open, self._most_points = logger, most_open, most_points
        self._waiting: dict[str, _Waiting] = {}  # by trial id, the longest waiting one first
        self._num_points = 0  # of all that wait
        self._num_written = 0  # times that the logger wrote something
        self._open: dict[str, OpenTrial] = {}  # of the thread alone
        self._is_over = self._is_out = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"hpxfer-{name}", daemon=True)
        self._thread.start()

    def put(self, trial: LoggedTrial, curves: tuple[Curve, ...], final: Final | None = None) -> None:
        """Let the logger write the points of curves, and then how the trial ended."""
        with self._changed:
            if self._is_out:
                return
            waiting = self._waiting.setdefault(trial.id, _Waiting(trial))
            waiting.curves += curves
            waiting.final = final
            self._num_points += sum(len(curve.steps) for curve in curves)
            self._changed.notify()
            too_late = self._num_points > self._most_points
        if too_late:
            self._leave_out(f"it is more than {self._most_points} points behind")

    def finish(self, idle_s: float = IDLE_S, most_s: float | None = None) -> None:
        """Wait until all is written: as long as the logger writes something every `idle_s` seconds, and at most
        `most_s`. Then the logger is left out.
        """
        with self._changed:
            self._is_over = True
            self._changed.notify()
        began = moved = time.monotonic()
        written, is_said = self._num_written, False
        while self._thread.is_alive() and not self._is_out:
            self._thread.join(_POLL_S)
            now = time.monotonic()
            if self._num_written != written:
                written, moved = self._num_written, now
            if now - moved > idle_s or (most_s is not None and now - began > most_s):
                self._leave_out("it did not end in time")
            elif not is_said and now - began > QUIET_S:
                is_said = True
                _log.warning("%s: waiting for %s to write what it has of %d trials", WHERE, self.name, self._num_left)

    @property
    def _num_left(self) -> int:
        with self._changed:
            return len(self._waiting)

    def _leave_out(self, why: str) -> None:
        with self._changed:
            if self._is_out:
                return
            self._is_out, left = True, len(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        trials = f"; {left} {'trial has' if left == 1 else 'trials have'} points that it lacks" if left else ""
        _log.warning("%s: %s failed and is left out from here on: %s%s", WHERE, self.name, why, trials)

    def _work(self) -> None:
        """Write until the run is over."""
        try:
            while (waiting := self._next()) is not None:
                self._write(waiting)
                self._num_written += 1
        except BaseException as error:  # no failure of a display may end the training
            self._leave_out(first_line(error))

    def _next(self) -> _Waiting | None:
        """Return what is written next. Wait for it. Return None if nothing more will come."""
        with self._changed:
            while not self._is_out:
                is_full = self._most_open is not None and len(self._open) >= self._most_open
                found = next((key for key in self._waiting if key in self._open or not is_full), None)
                if found is not None:
                    waiting = self._waiting.pop(found)
                    self._num_points -= sum(len(curve.steps) for curve in waiting.curves)
                    return waiting
                if self._is_over:
                    return None
                self._changed.wait()
            return None

    def _write(self, waiting: _Waiting) -> None:
        key = waiting.trial.id
        if key not in self._open:
            self._open[key] = self._logger.open(waiting.trial)
        if waiting.curves:
            self._open[key].log(by_step(waiting.curves))
        if waiting.final is not None:
            self._open.pop(key).close(waiting.final)
