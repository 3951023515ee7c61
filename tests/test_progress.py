"""The progress line says what is done, how fast it goes and how long it will take."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hpxfer.driver import Tally
from hpxfer.plan_text import spell_time
from hpxfer.progress import ProgressLine, status_text
from hpxfer.result import TrialResult
from hpxfer.train.event import Event, Progress


def tally_of(*events: Event) -> Tally:
    tally = Tally(num_left=10, tokens_left=1000)
    for event in events:
        tally.add(event)
    return tally


def test_the_line() -> None:
    results = tuple(TrialResult(trial_id=str(k), status=s) for k, s in enumerate(("finished", "failed", "diverged")))  # type: ignore[arg-type]
    line = status_text(tally_of(Progress(tokens=200), results), elapsed_s=2.0)
    assert line == "trials 3/10 done, 1 failed, 1 diverged | 100 tokens/s | ETA 8 s"
    assert status_text(tally_of(), elapsed_s=1.0) == "trials 0/10 done, 0 failed, 0 diverged | starting workers"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_times(seconds: float, text: str) -> None:
    assert spell_time(seconds) == text


def test_off_a_terminal_the_last_state_is_printed_once() -> None:
    out = io.StringIO()
    with ProgressLine(Console(file=out, width=200)) as line:
        line(Progress(tokens=1000), tally_of(Progress(tokens=1000)))
    assert out.getvalue().count("\n") == 1
    assert "trials 0/10 done" in out.getvalue()


def test_a_run_without_events_prints_nothing() -> None:
    out = io.StringIO()
    with ProgressLine(Console(file=out)):
        pass
    assert out.getvalue() == ""
