"""Stream: the events of a run become the curves of its trials, each point once.

A trial's points are known up to a step. A report that begins there, or before, adds its later points. A report that
begins after it is passed over, because a report before it was lost; the results bring those points. So no point is
logged twice when a worker is lost and its stack goes on from a checkpoint, and none is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hpxfer.loggers.feed import Feed
from hpxfer.loggers.kinds import LoggerKind
from hpxfer.loggers.logger import Final, LoggedTrial, Place
from hpxfer.loggers.points import final_of, since
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack

INTERRUPTED = Final(status="interrupted", values={})
# How long a run that ends early waits for its loggers.
LEAVE_S = 10.0

Describe = Callable[[Trial], LoggedTrial]


class Stream:
    """Takes the events of a run, and puts each trial's new points into all feeds."""

    def __init__(self, feeds: Sequence[Feed], describe: Describe) -> None:
        self._feeds, self._describe = tuple(feeds), describe
        self._open: dict[str, LoggedTrial] = {}  # by id: those that a worker has
        self._known: dict[str, int] = {}  # trial id -> the step before which all points are known

    def take(self, stack: Stack, event: Event) -> None:
        """Take an event. It never waits for a logger."""
        for trial in stack.trials:
            if trial.id not in self._open:
                self._open[trial.id], self._known[trial.id] = self._describe(trial), 0
        if isinstance(event, Progress) and event.points is not None:
            for trial_id, curves in event.points.curves.items():
                self._add(trial_id, curves, event.points.first, event.points.stop)
        elif isinstance(event, Ended):
            for result in event.results:
                self._end(result, stack.setting.steps)

    def interrupt(self) -> None:
        """Close the trials that have not ended."""
        for trial in self._open.values():
            self._put(trial, (), INTERRUPTED)
        self._open.clear()

    def _add(self, trial_id: str, curves: Sequence[Curve], first: int, stop: int) -> None:
        known = self._known[trial_id]
        if not first <= known < stop:
            return
        self._known[trial_id] = stop
        if new := since(curves, known):
            self._put(self._open[trial_id], new)

    def _end(self, result: TrialResult, steps: int) -> None:
        new = since(result.curves, self._known.pop(result.trial_id))
        self._put(self._open.pop(result.trial_id), new, final_of(result, steps))

    def _put(self, trial: LoggedTrial, curves: tuple[Curve, ...], final: Final | None = None) -> None:
        for feed in self._feeds:
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
