"""From events to loggers: each point arrives once, and the driver never waits for a logger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Caplog
from made_results import trials_of
from recorded_logger import Recorder, place_in

from hpxfer.loggers.feed import Feed, streaming
from hpxfer.loggers.kinds import LoggedTrial, LoggerKind, Place
from hpxfer.testing.loggers import FINISHED, trial_named
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event, Points, Progress, Started
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack

PATIENCE_S = 30.0  # of a test that has failed
TRIALS = [trial_named(f"sp/base/lr=2^-7/seed={number}", number) for number in range(4)]


def loss(*steps: int) -> tuple[Curve, ...]:
    return (Curve(metric="loss", steps=steps, values=tuple(map(float, steps))),)


def waiting_for(go: threading.Event, begun: threading.Event | None = None) -> Callable[[str], None]:
    """Return what makes a logger wait. `begun` is set when it does."""

    def wait(what: str) -> None:
        if begun is not None:
            begun.set()
        assert go.wait(PATIENCE_S)

    return wait


def warnings_of(caplog: Caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("hpxfer")]


def test_points_are_written_in_order_and_by_step() -> None:
    recorder = Recorder()
    feed = Feed("mine", recorder)
    rms = Curve(metric="grad_rms", role="router", layer=1, steps=(3,), values=(0.5,))
    feed.put(TRIALS[0], (*loss(0, 3), rms))
    feed.put(TRIALS[0], loss(4), FINISHED)
    feed.finish()
    assert recorder.curve(TRIALS[0].id, "loss") == [(0, 0.0), (3, 3.0), (4, 4.0)]
    assert recorder.curve(TRIALS[0].id, "grad_rms/router/layer1") == [(3, 0.5)]
    assert recorder.asked()[0] == "open"
    assert recorder.seen[-1] == ("close", TRIALS[0], FINISHED)


def test_nobody_waits_for_a_logger_that_hangs(caplog: Caplog) -> None:
    hang = threading.Event()
    recorder = Recorder(before=waiting_for(hang))
    feed = Feed("mine", recorder)
    with caplog.at_level(logging.WARNING):
        for step in range(100):
            for trial in TRIALS:
                feed.put(trial, loss(step))
        feed.finish(idle_s=0.1)
        assert recorder.seen == []  # put and finish came back while the logger hung
        feed.put(TRIALS[0], loss(100))
        feed.finish(idle_s=0.1)
    hang.set()
    (warning,) = warnings_of(caplog)
    assert warning.startswith("resources.loggers: mine failed and is left out from here on: it did not end in time; ")


def test_a_slow_logger_gets_more_points_at_once_and_misses_none() -> None:
    begun, go = threading.Event(), threading.Event()
    recorder = Recorder(before=waiting_for(go, begun))
    feed = Feed("mine", recorder)
    feed.put(TRIALS[0], loss(0))
    assert begun.wait(PATIENCE_S)
    for step in range(1, 50):
        feed.put(TRIALS[0], loss(step))
    feed.put(TRIALS[0], (), FINISHED)
    go.set()
    feed.finish()
    assert recorder.asked() == ["open", "log", "log", "close"]
    assert list(recorder.seen[2][2]) == list(range(1, 50))


def test_a_logger_that_is_too_far_behind_is_left_out(caplog: Caplog) -> None:
    go = threading.Event()
    recorder = Recorder(before=waiting_for(go))
    feed = Feed("mine", recorder, most_points=10)
    with caplog.at_level(logging.WARNING):
        for step in range(20):
            feed.put(TRIALS[step % 2], loss(step))
        go.set()
        feed.finish()
    (warning,) = warnings_of(caplog)
    assert "mine failed and is left out from here on: it is more than 10 points behind" in warning


@pytest.mark.parametrize("at", ["open", "log", "close"])
def test_a_logger_that_fails_is_left_out_and_said_so_once(caplog: Caplog, at: str) -> None:
    def fail(what: str) -> None:
        if what == at:
            raise OSError("no space left\nand more lines")

    recorder, other = Recorder(before=fail), Recorder()
    feeds = [Feed("mine", recorder), Feed("other", other)]
    with caplog.at_level(logging.WARNING):
        for feed in feeds:
            for trial in TRIALS:
                feed.put(trial, loss(0), FINISHED)
        for feed in feeds:
            feed.finish()
    (warning,) = warnings_of(caplog)
    assert warning.startswith("resources.loggers: mine failed and is left out from here on: ")
    assert "no space left" in warning
    assert "\n" not in warning
    assert len(recorder.seen) < 3
    assert len(other.seen) == 3 * len(TRIALS)


def test_trials_beyond_those_that_may_be_open_wait_and_lose_nothing() -> None:
    written = threading.Semaphore(0)
    recorder = Recorder(before=lambda what: written.release() if what == "log" else None)
    feed = Feed("mine", recorder, most_open=2)
    for trial in TRIALS:
        feed.put(trial, loss(0))
    for _ in range(2):
        assert written.acquire(timeout=PATIENCE_S)
    for trial in TRIALS:
        feed.put(trial, loss(1))
    for trial in TRIALS:
        feed.put(trial, loss(2), FINISHED)
    feed.finish()
    assert recorder.most_open == 2
    assert set(recorder.ends()) == {trial.id for trial in TRIALS}
    for trial in TRIALS:
        assert [step for step, _ in recorder.curve(trial.id, "loss")] == [0, 1, 2]
    feed = Feed("mine", free := Recorder())  # without a limit
    for trial in TRIALS:
        feed.put(trial, loss(0))
    feed.finish()
    assert free.most_open == free.num_open == len(TRIALS)


PAIR = tuple(trials_of()[:2])
STACK = Stack(trials=PAIR)
STEPS = STACK.setting.steps
STARTED = Started(host="here", pid=1)


def curve(number: int, first: int, stop: int) -> Curve:
    steps = tuple(range(first, stop))
    return Curve(metric="loss", steps=steps, values=tuple(1000.0 * number + step for step in steps))


def sparse(number: int, first: int, stop: int) -> tuple[Curve, ...]:
    steps = tuple(step for step in range(first, stop) if step % 10 == 0)
    return (Curve(metric="rms", role="router", steps=steps, values=tuple(map(float, steps))),) if steps else ()


def progress(first: int, stop: int, numbers: Sequence[int] = (0, 1)) -> Progress:
    curves = {PAIR[k].id: (curve(k, first, stop), *sparse(k, first, stop)) for k in numbers}
    return Progress(tokens=1, step=stop, points=Points(first=first, stop=stop, curves=curves))


def ended(stop: int = STEPS, **changed: Any) -> Ended:
    results = (
        TrialResult(trial_id=trial.id, status="finished", curves=(curve(k, 0, stop), *sparse(k, 0, stop)))
        for k, trial in enumerate(PAIR)
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
    for number, trial in enumerate(PAIR):
        assert recorder.curve(trial.id, "loss") == [(step, 1000.0 * number + step) for step in range(STEPS)]
        assert recorder.curve(trial.id, "rms/router") == [(step, float(step)) for step in range(0, STEPS, 10)]
    assert {key: final.status for key, final in recorder.ends().items()} == {trial.id: "finished" for trial in PAIR}


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
    assert [step for step, _ in recorder.curve(PAIR[0].id, "loss")] == list(range(10))
    assert [final.status for final in recorder.ends().values()] == ["interrupted", "interrupted"]


def test_a_failed_or_diverged_trial_ends_where_it_did() -> None:
    recorder = logged([STARTED, ended(7, status="diverged", diverged_step=7, last_finite_loss_nats=6.0)])
    for final in recorder.ends().values():
        assert (final.status, final.step) == ("diverged", 7)
        assert final.values == {"diverged_step": 7.0, "last_finite_loss_nats": 6.0}
    recorder = logged([STARTED, ended(status="failed", curves=(), error="killed")])
    assert recorder.asked() == 2 * ["open", "close"]
    assert {(final.status, len(final.values)) for final in recorder.ends().values()} == {("failed", 0)}


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
