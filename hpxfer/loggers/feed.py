"""From the events of a run to the points of each trial, each once, and the thread in which one logger writes them.

The driver puts curves into a feed and never waits. A logger that is slow gets more points at once. A logger that fails
is left out from then on, with one warning. So is one that falls behind by more than MOST_POINTS points: no points are
lost in silence.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hpxfer.errors import first_line
from hpxfer.loggers.kinds import WHERE, Final, LoggedTrial, Logger, LoggerKind, OpenTrial, Place, StepValues
from hpxfer.trial import Curve, Ended, Event, Progress, Stack, Trial, TrialResult

INTERRUPTED = Final(status="interrupted", values={})
# How long a run that ends early waits for its loggers.
LEAVE_S = 10.0

Describe = Callable[[Trial], LoggedTrial]


class Stream:
    """Takes the events of a run, and puts each trial's new points into all feeds. None of it waits for a logger.

    A trial's points are known up to a step. A report that begins there, or before, adds its later points. A report that
    begins after it is passed over, because a report before it was lost; the results bring those points. So no point is
    logged twice when a worker is lost and its stack goes on from a checkpoint, and none is missing.
    """

    def __init__(self, feeds: Sequence[Feed], describe: Describe) -> None:
        self._feeds, self._describe = tuple(feeds), describe
        self._open: dict[str, LoggedTrial] = {}  # by id: those that a worker has
        self._known: dict[str, int] = {}  # trial id -> the step before which all points are known

    def take(self, stack: Stack, event: Event) -> None:
        """Take an event."""
        for trial in stack.trials:
            if trial.id not in self._open:
                self._open[trial.id], self._known[trial.id] = self._describe(trial), 0
        if isinstance(event, Progress) and event.points is not None:
            for key, curves in event.points.curves.items():
                known = self._known[key]
                if event.points.first <= known < event.points.stop:
                    self._known[key] = event.points.stop
                    self._put(self._open[key], since(curves, known))
        elif isinstance(event, Ended):
            for result in event.results:
                new = since(result.curves, self._known.pop(result.trial_id))
                self._put(self._open.pop(result.trial_id), new, final_of(result, stack.setting.steps))

    def interrupt(self) -> None:
        """Close the trials that have not ended."""
        for trial in self._open.values():
            self._put(trial, (), INTERRUPTED)
        self._open.clear()

    def _put(self, trial: LoggedTrial, curves: tuple[Curve, ...], final: Final | None = None) -> None:
        for feed in self._feeds if curves or final else ():
            feed.put(trial, curves, final)


@contextmanager
def streaming(
    kinds: Sequence[LoggerKind], place: Place, describe: Describe
) -> Iterator[Callable[[Stack, Event], None]]:
    """Yield the function that takes the events of a run and shows its trials to loggers. `describe` is asked for a
    trial when a worker begins with it.

    At the end the loggers write what they have. After an exception they have LEAVE_S seconds for it.
    """
    loggers = [(kind, kind.make(place)) for kind in kinds]
    feeds = [Feed(kind.name, logger, most_open=kind.most_open) for kind, logger in loggers]
    stream = Stream(feeds, describe)
    most_s: float | None = LEAVE_S
    try:
        yield stream.take
        most_s = None
    finally:
        stream.interrupt()
        began = time.monotonic()
        for feed in feeds:
            feed.finish(most_s=None if most_s is None else most_s - (time.monotonic() - began))


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
                left = len(self._waiting)
                _log.warning("%s: waiting for %s to write what it has of %d trials", WHERE, self.name, left)

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


# The fields of a result that are shown beside its status.
_FINAL = (
    *("validation_loss_nats", "final_window_loss_nats", "validation_error", "validation_top5_error"),
    *("last_finite_loss_nats", "diverged_step"),
)


def metric_of(curve: Curve) -> str:
    """Return the name of a curve, e.g. `train_loss_nats`, `grad_rms/router` or `load_deviation/layer1`."""
    parts = (curve.metric, curve.role, None if curve.layer is None else f"layer{curve.layer}")
    return "/".join(part for part in parts if part is not None)


def since(curves: Iterable[Curve], first: int) -> tuple[Curve, ...]:
    """Return the curves from step `first` on, without those that have no point there."""
    out = []
    for curve in curves:
        start = bisect_left(curve.steps, first)
        if start < len(curve.steps):
            out.append(replace(curve, steps=curve.steps[start:], values=curve.values[start:]) if start else curve)
    return tuple(out)


def by_step(curves: Iterable[Curve]) -> StepValues:
    """Return the points of curves by ascending step."""
    out: dict[int, dict[str, float]] = {}
    for curve in curves:
        metric = metric_of(curve)
        for step, value in zip(curve.steps, curve.values, strict=True):
            out.setdefault(step, {})[metric] = value
    return dict(sorted(out.items()))


def final_of(result: TrialResult, steps: int) -> Final:
    """Return how a trial of so many steps ended. Its numbers stand at the step at which its training ended."""
    values = {name: float(value) for name in _FINAL if (value := getattr(result, name)) is not None}
    step = steps if result.diverged_step is None else result.diverged_step
    return Final(status=result.status, step=step, values=values)
