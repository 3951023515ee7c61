"""An interrupted run waits a short time for its workers' checkpoints, and not at all when it is interrupted again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import until_asked

from hpxfer.errors import HpxferError
from hpxfer.executors import local
from hpxfer.executors.executor import once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.worker import STOP_S, StopRequest
from hpxfer.host.interrupts import Interrupted, interrupts
from hpxfer.testing.executor import FINE, WAITS, Misbehave, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Progress, Started
from hpxfer.trial.stack import Stack

# A worker that never looks whether it is asked to stop, as one within a very long step.
FAR_S = 600.0


def run_until(
    error: BaseException, setting: Setting, folder: Path, ends_with: type[BaseException] | None = None
) -> float:
    """Return how long a run takes to end whose callback raises, while its worker waits for a file.

    If it `ends_with` another exception, the process is interrupted half a second later.
    """
    began: list[float] = []
    again = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    def fail(stack: Stack, event: Event) -> None:
        began.append(time.monotonic())
        if ends_with:
            again.start()
        raise error

    with pytest.raises(ends_with or type(error)):
        LocalExecutor(workers=1).run(once([tiny_stack(setting, WAITS, size=1)]), Misbehave(str(folder)), fail)
    return time.monotonic() - began[0]


def test_a_step_that_takes_longer_is_abandoned(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "STOP_S", 0.2)
    assert 0.2 <= run_until(KeyboardInterrupt(), setting, tmp_path) < FAR_S


def test_a_second_interrupt_ends_it_at_once(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_S", FAR_S)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts():
            assert run_until(ValueError(), setting, tmp_path, ends_with=Interrupted) < FAR_S / 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_that_may_not_write_waits_for_nothing(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is lost, or its disk is full."""
    monkeypatch.setattr(local, "STOP_S", FAR_S)
    assert run_until(HpxferError("the lease was taken over"), setting, tmp_path) < FAR_S / 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_ended_alone_keeps_its_steps(
    number: signal.Signals,
    setting: Setting,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Slurm can send either signal to every process of a job. Another worker then goes on from the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(Path(until_asked.__file__).parent))
    events: list[Event] = []

    def end_the_first(_: Stack, event: Event) -> None:
        events.append(event)
        match events:
            case [Started(pid=pid), Progress()]:
                os.kill(pid, number)

    train = until_asked.UntilAsked(str(tmp_path))
    LocalExecutor(workers=1).run(once([tiny_stack(setting, FINE, size=2)]), train, end_the_first)
    assert (tmp_path / until_asked.KEPT).exists()
    assert len([event for event in events if isinstance(event, Started)]) == 2
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert {result.status for result in ended.results} == {"finished"}
    assert capfd.readouterr().err == ""


def test_a_worker_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks, asked = [100.0], [0], [False]
    monkeypatch.setattr("hpxfer.executors.worker.time.monotonic", lambda: now[0])

    def look() -> bool:
        looks[0] += 1
        return asked[0]

    stop = StopRequest()
    stop.look = look
    assert [stop.check() for _ in range(5)] == [False] * 5
    assert looks == [1]
    now[0], asked[0] = 100.5, True
    assert stop.check()
    now[0], asked[0] = 200.0, False
    assert stop.check()  # once it was asked to stop, it was asked for good
    assert looks == [2]
    assert STOP_S <= 10.0  # Slurm and Ray jobs wait longer than that before they kill
