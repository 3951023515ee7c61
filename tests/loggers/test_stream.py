"""Stream: each point of a curve reaches the loggers once, whatever becomes of workers and of reports."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import trials_of
from recorded_logger import Recorder, place_in

from hpxfer.loggers.kinds import LoggerKind
from hpxfer.loggers.logger import LoggedTrial, Place
from hpxfer.loggers.stream import streaming
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event, Points, Progress, Started
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack

TRIALS = tuple(trials_of()[:2])
STACK = Stack(trials=TRIALS)
STEPS = STACK.setting.steps
STARTED = Started(host="here", pid=1)


def loss(number: int, first: int, stop: int) -> Curve:
    steps = tuple(range(first, stop))
    return Curve(metric="loss", steps=steps, values=tuple(1000.0 * number + step for step in steps))


def sparse(number: int, first: int, stop: int) -> tuple[Curve, ...]:
    steps = tuple(step for step in range(first, stop) if step % 10 == 0)
    return (Curve(metric="rms", role="router", steps=steps, values=tuple(map(float, steps))),) if steps else ()


def progress(first: int, stop: int, numbers: Sequence[int] = (0, 1)) -> Progress:
    curves = {TRIALS[k].id: (loss(k, first, stop), *sparse(k, first, stop)) for k in numbers}
    return Progress(tokens=1, step=stop, points=Points(first=first, stop=stop, curves=curves))


def ended(stop: int = STEPS, **changed: Any) -> Ended:
    results = (
        TrialResult(trial_id=trial.id, status="finished", curves=(loss(k, 0, stop), *sparse(k, 0, stop)))
        for k, trial in enumerate(TRIALS)
    )
    return Ended(results=tuple(replace(result, **changed) for result in results))


def described(trial: Trial) -> LoggedTrial:
    return LoggedTrial(id=trial.id, name=trial.id, config={})


def logged(events: Sequence[Event]) -> Recorder:
    recorder = Recorder()
    with streaming([recorder.kind()], place_in(Path()), described) as take:
        for event in events:
            take(STACK, event)
    return recorder


CASES = {
    "as it goes": [STARTED, progress(0, 10), progress(10, 50), progress(50, STEPS), ended()],
    "no reports": [STARTED, ended()],
    "no Started": [ended()],
    "a lost worker whose stack starts over": [
        *(STARTED, progress(0, 10), progress(10, 50)),
        *(STARTED, progress(0, 20), progress(20, 60), ended()),
    ],
    "a lost worker whose stack goes on from a checkpoint": [
        *(STARTED, progress(0, 10), progress(10, 50)),
        *(STARTED, progress(0, 40), progress(40, 70), ended()),
    ],
    "a lost report": [STARTED, progress(0, 10), progress(50, 60), progress(60, 90), ended()],
    "a stack that is cut in half": [
        *(STARTED, progress(0, 30), progress(0, 20, [0]), progress(20, 60, [0])),
        *(progress(0, 40, [1]), progress(40, STEPS, [1]), ended()),
    ],
    "the same report twice": [STARTED, progress(0, 10), progress(0, 10), progress(10, 20), progress(5, 30), ended()],
    "reports without points": [STARTED, Progress(tokens=1), Progress(tokens=1, step=50), ended()],
}


@pytest.mark.parametrize("case", CASES)
def test_every_point_is_logged_once_and_in_order(case: str) -> None:
    recorder = logged(CASES[case])
    for number, trial in enumerate(TRIALS):
        assert recorder.curve(trial.id, "loss") == [(step, 1000.0 * number + step) for step in range(STEPS)]
        assert recorder.curve(trial.id, "rms/router") == [(step, float(step)) for step in range(0, STEPS, 10)]
    assert {key: final.status for key, final in recorder.ends().items()} == {trial.id: "finished" for trial in TRIALS}


def test_points_are_logged_before_the_trial_ends() -> None:
    recorder = Recorder()
    place = place_in(Path())

    def interrupted() -> None:
        with streaming([recorder.kind()], place, described) as take:
            take(STACK, STARTED)
            take(STACK, progress(0, 10))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [step for step, _ in recorder.curve(TRIALS[0].id, "loss")] == list(range(10))
    assert [final.status for final in recorder.ends().values()] == ["interrupted", "interrupted"]


def test_a_trial_without_points_is_opened_and_closed() -> None:
    recorder = logged([STARTED, ended(status="failed", curves=(), error="killed")])
    assert recorder.asked() == 2 * ["open", "close"]
    assert {(final.status, len(final.values)) for final in recorder.ends().values()} == {("failed", 0)}


def test_a_diverged_trial_ends_where_it_diverged() -> None:
    recorder = logged([STARTED, ended(7, status="diverged", diverged_step=7, last_finite_loss_nats=6.0)])
    for final in recorder.ends().values():
        assert (final.status, final.step) == ("diverged", 7)
        assert final.values == {"diverged_step": 7.0, "last_finite_loss_nats": 6.0}


def test_the_first_loggers_write_nothing_if_the_last_one_cannot_be_made() -> None:
    def fail(place: Place) -> Any:
        raise OSError("no folder")

    recorder = Recorder()
    kinds = [recorder.kind(), LoggerKind(name="broken", require=lambda: None, make=fail)]
    threads = threading.active_count()
    with pytest.raises(OSError, match="no folder"), streaming(kinds, place_in(Path()), described):
        pass
    assert recorder.asked() == []
    assert threading.active_count() == threads
