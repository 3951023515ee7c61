"""Feed: the driver never waits for a logger, and a logger that cannot go on is left out with one warning."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from recorded_logger import Recorder

from hpxfer.loggers.feed import Feed
from hpxfer.testing.loggers import FINISHED, trial_named
from hpxfer.trial.result import Curve

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


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
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


def test_nobody_waits_for_a_logger_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_logger_that_is_too_far_behind_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_logger_that_fails_is_left_out_and_said_so_once(caplog: pytest.LogCaptureFixture, at: str) -> None:
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


def test_without_a_limit_all_trials_are_open_at_once() -> None:
    recorder = Recorder()
    feed = Feed("mine", recorder)
    for trial in TRIALS:
        feed.put(trial, loss(0))
    feed.finish()
    assert recorder.most_open == recorder.num_open == len(TRIALS)
