"""The counts of a run, whatever its workers repeat, and the live picture of them."""

from __future__ import annotations

import io
import json
import math
import textwrap
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fixture_types import Patch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import Clock, planned, run_status, running_stack, shape_progress, stack_of
from pydantic import TypeAdapter
from rich.console import Console, RenderableType
from tiny_trials import BASE, JOINT

from hpxfer.host.output import spell_time
from hpxfer.progress import live as progress
from hpxfer.progress.counts import LEAST_S, MOST_MARKS, MOST_NOTES, RunCounts, Throughput
from hpxfer.progress.live import LEAST_ROWS, LiveProgress, progress_table, status_text
from hpxfer.progress.status import RunStatus, as_data
from hpxfer.trial.events import Ended, Progress, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

HERE = Started(host="here", pid=7)


def results(stack: Stack, *statuses: str, loss: float = 2.0) -> tuple[TrialResult, ...]:
    return tuple(
        TrialResult(
            trial_id=trial.id,
            status=status,
            validation_loss_nats=loss + k if status == "finished" else None,
            error="broken" if status == "failed" else None,
        )
        for k, (trial, status) in enumerate(zip(stack.trials, statuses, strict=True))
    )


def steps(stack: Stack, number: int, at: int | None = None, losses: tuple[float, ...] = ()) -> Progress:
    return Progress(tokens=number * stack.setting.batch_tokens * len(stack.trials), step=at, losses=losses)


def again(status: RunStatus) -> RunStatus:
    """Return a status as a reader of its file gets it."""
    return TypeAdapter(RunStatus).validate_json(json.dumps(as_data(status)))


def test_a_run_is_counted_from_its_events() -> None:
    clock = Clock()
    counts = RunCounts(planned({BASE: (4, 1), JOINT: (2, 0)}), clock=clock)
    stack = stack_of(BASE, 3)
    counts.add(stack, HERE)
    clock.now = 5.0
    counts.add(stack, steps(stack, 2, 2, (2.5, math.nan, 3.5)))
    counts_now = counts.run_status()
    assert again(counts_now) == counts_now
    (running,) = counts_now.running
    assert (running.label, running.host, running.pid, running.step, running.steps) == (BASE.label(), "here", 7, 2, 6)
    assert (running.alive, running.loss_nats, running.running_s) == (2, 2.5, 5.0)
    assert counts_now.shapes[0].running == 3
    counts.add(stack, steps(stack, 2, 3, (math.nan,) * 3))
    (lost,) = as_data(counts.run_status())["running"]
    assert (lost["loss_nats"], lost["alive"]) == (None, 0)  # JSON has no NaN
    counts.add(stack, Ended(results=results(stack, "finished", "diverged", "failed", loss=1e30)))  # finite
    found = counts.run_status()
    assert (found.finished, found.diverged, found.failed, found.ended, found.num_left) == (1, 1, 1, 3, 5)
    assert (found.running, found.errors, found.tokens) == ((), ("broken",), 4 * 3 * 64)
    base, joint = found.shapes
    assert (base.num_trials, base.num_done, base.num_left, base.failed, base.running) == (4, 3, 1, 1, 0)
    assert (joint.num_trials, joint.num_done, joint.best_loss) == (2, 0, None)


def test_a_trial_that_was_stopped_early_is_done_and_never_the_best() -> None:
    counts, stack = RunCounts(planned({BASE: (2, 0)})), stack_of(BASE, 1)
    counts.add(stack, Ended(results=tuple(replace(result, status="stopped") for result in results(stack, "finished"))))
    (shape,) = counts.run_status().shapes
    assert (counts.run_status().ended, shape.stopped, shape.num_done, shape.best_loss) == (1, 1, 1, None)


def test_the_best_of_a_shape_is_named_and_stored_trials_count() -> None:
    counts = RunCounts(planned({BASE: (4, 1)}))
    stack = stack_of(BASE, 2, lr=2.0**-5)
    counts.add(stack, Ended(results=results(stack, "finished", "diverged", loss=2.0)))
    assert (counts.run_status().shapes[0].best_loss, counts.run_status().shapes[0].best) == (2.0, "lr 2^-5 sp")
    for loss, best in ((math.nan, "lr 2^-5 sp"), (3.0, "lr 2^-5 sp"), (1.0, "lr 0.3 sp"), (None, "lr 0.3 sp")):
        counts.stored(stack_of(BASE, 1, lr=0.3).trials[0], loss)
        assert counts.run_status().shapes[0].best == best


def test_what_a_lost_worker_repeats_is_not_done_twice() -> None:
    clock = Clock()
    counts = RunCounts(planned({BASE: (2, 0)}), clock=clock)
    stack = stack_of(BASE, 2)
    for second, event in enumerate((HERE, steps(stack, 4, 4), HERE, steps(stack, 2, 2))):
        clock.now = float(second)
        counts.add(stack, event)
    (running,) = counts.run_status().running
    assert (running.step, running.running_s) == (2, 1.0)
    counts.add(stack, steps(stack, 4, 6))
    counts.add(stack, Ended(results=results(stack, "finished", "finished")))
    assert counts.run_status().ended == 2
    assert counts.run_status().num_left == 2


def test_a_stack_that_goes_on_from_a_checkpoint_has_less_left() -> None:
    """Six steps of one second each, four of them before: the ETA is that of two."""
    left = {}
    for step in (1, 5):
        clock = Clock()
        counts = RunCounts(planned({BASE: (2, 0)}), clock=clock)
        stack = stack_of(BASE, 2)
        counts.add(stack, steps(stack, 1, step - 1, (1.0, 1.0)))
        clock.now = LEAST_S
        counts.add(stack, steps(stack, 1, step, (1.0, 1.0)))
        left[step] = counts.run_status().eta_s
    assert left == {1: 5 * LEAST_S, 5: pytest.approx(LEAST_S)}


def test_the_eta_waits_for_the_slowest_stack() -> None:
    clock = Clock()
    counts = RunCounts(planned({BASE: (100, 97)}), clock=clock)
    slow, fast = stack_of(BASE, 1), stack_of(BASE, 2, lr=0.1)
    counts.add(slow, steps(slow, 1, 1))
    counts.add(fast, steps(fast, 1, 1))
    clock.now = 10.0
    counts.add(slow, steps(slow, 1, 2))
    counts.add(fast, steps(fast, 5, 6))
    assert counts.run_status().eta_s == pytest.approx(40.0)  # four steps of ten seconds


def test_nobody_knows_an_eta_before_there_is_a_pace() -> None:
    clock = Clock()
    counts = RunCounts(planned({BASE: (2, 0)}), clock=clock)
    stack = stack_of(BASE, 2)
    clock.now = 100.0  # the workers were slow to start
    counts.add(stack, steps(stack, 1, 1))
    assert (counts.run_status().eta_s, counts.run_status().tokens_per_s) == (None, None)
    clock.now = 104.0
    counts.add(stack, steps(stack, 1, 2))
    assert counts.run_status().tokens_per_s == 2 * 64 / 4


def test_an_adaptive_search_may_have_shapes_and_trials_that_no_plan_had() -> None:
    counts = RunCounts(replace(planned({BASE: (1, 0)}), at_most=True))
    for stack in (stack_of(BASE, 2), stack_of(JOINT, 1)):
        counts.add(stack, Ended(results=results(stack, *["finished"] * len(stack.trials))))
    found = counts.run_status()
    assert (found.at_most, found.num_left, found.ended) == (True, 3, 3)
    assert [row.num_trials for row in found.shapes] == [2, 1]


def test_each_decision_is_kept_once_and_the_last_few_are() -> None:
    counts = RunCounts(planned({BASE: (1, 0)}))
    for _ in range(2):  # a search says all it has decided whenever it is asked
        for number in range(20):
            counts.note(f"round {number}")
    counts.note("")
    assert counts.run_status().num_notes == 20
    assert counts.run_status().notes == tuple(f"round {number}" for number in range(20 - MOST_NOTES, 20))


EVENTS = st.lists(st.sampled_from(("start", "steps", "more", "end")), max_size=30)


@given(EVENTS, st.lists(st.floats(0, 100), min_size=30, max_size=30))
def test_no_order_of_events_breaks_the_counts(events: Sequence[str], gaps: Sequence[float]) -> None:
    clock = Clock()
    counts = RunCounts(planned({BASE: (6, 1)}), clock=clock)
    stack = stack_of(BASE, 2)
    for kind, gap in zip(events, gaps, strict=False):
        clock.now += gap
        match kind:
            case "start":
                counts.add(stack, HERE)
            case "steps":
                counts.add(stack, steps(stack, 2))
            case "more":
                counts.add(stack, steps(stack, 10**6, 10**6))
            case _:
                counts.add(stack, Ended(results=results(stack, "finished", "diverged")))
        found = counts.run_status()
        assert all(0 <= stack.step <= stack.steps for stack in found.running)
        assert found.eta_s is None or 0 <= found.eta_s < math.inf
        assert found.tokens_per_s is None or found.tokens_per_s > 0
        assert found.ended == found.finished + found.diverged
        assert again(found) == found


def test_threads_may_look_while_the_driver_counts() -> None:
    counts = RunCounts(planned({BASE: (400, 0)}))
    stacks = [stack_of(BASE, 1, lr=1.0 / (1 + k)) for k in range(200)]
    looked: list[RunStatus] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            looked.append(counts.run_status())

    thread = threading.Thread(target=look)
    thread.start()
    for stack in stacks:
        counts.add(stack, HERE)
    for stack in stacks:
        counts.add(stack, Ended(results=results(stack, "finished")))
    done.set()
    thread.join()
    assert all(status.ended + len(status.running) <= 200 for status in looked)
    assert counts.run_status().finished == 200


def test_a_pace_is_that_of_the_later_half_and_does_not_grow() -> None:
    throughput = Throughput()
    for second in range(1000):
        throughput.add(float(second), 1.0 if second < 500 else 3.0)
    assert throughput.rate(999.0) == pytest.approx(3.0, rel=0.02)
    assert len(throughput._marks) <= MOST_MARKS
    assert throughput.total == 500 + 1500


def test_a_pace_falls_while_nothing_comes() -> None:
    throughput = Throughput()
    for second in range(11):
        throughput.add(float(second), 1.0)
    rates = [throughput.rate(float(second)) for second in (10, 20, 40, 80)]
    assert rates == sorted((rate for rate in rates if rate is not None), reverse=True)


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def drawn(picture: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(picture)
    return out.getvalue().splitlines()


def test_the_line() -> None:
    assert status_text(run_status()) == "trials 3/10 done, 1 failed, 1 diverged | 100 tokens/s | ETA 8 s"
    assert status_text(run_status(at_most=True)).startswith("trials 3/at most 10 done")
    assert status_text(run_status(at_most=True)).endswith("ETA at most 8 s")
    assert status_text(run_status(finished=8)).endswith("| 100 tokens/s")  # nothing is left to wait for
    assert "trials 5/10 done, 1 failed, 1 diverged, 2 stopped early |" in status_text(run_status(stopped=2))
    slow = run_status(tokens_per_s=None, eta_s=None)
    assert status_text(slow).endswith("starting workers")
    assert status_text(run_status(tokens_per_s=None, running=(running_stack(),))).endswith("first report")
    assert status_text(run_status(tokens_per_s=None, eta_s=None, finished=8)).endswith("diverged")  # over before it


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_times(seconds: float, text: str) -> None:
    assert spell_time(seconds) == text


def test_the_tables_say_what_runs_and_what_is_best() -> None:
    best = {"finished": 2, "best_loss": 1.23456, "best_text": "1.2346 nats", "best": "lr 2^-6 sp"}
    row = shape_progress("w32 d2 E4A1 h32", num_stored=4, running=8, **best)
    stacks = (running_stack("w32 d2 E4A1 h32", alive=5), running_stack("w64 d2", alive=0, loss_nats=None, step=100))
    text = "\n".join(drawn(progress_table(run_status(shapes=(row,), running=stacks), width=120, height=40), 120))
    for word in ("w32 d2 E4A1 h32", "6/10", "1.2346", "lr 2^-6 sp", "30/100", "5 of 8", "diverged", "node-1 123"):
        assert word in text


@given(st.integers(20, 160), st.integers(5, 60), st.integers(0, 80), st.integers(0, 80), st.booleans(), st.booleans())
def test_the_picture_fits_any_terminal(
    width: int, height: int, shapes: int, stacks: int, long: bool, nan: bool
) -> None:
    label = "w2048 d64 E128A16 h8192 S2x4096 G8 D16384" if long else "w16 d1"
    loss = None if nan else 2.5
    shown = run_status(
        shapes=tuple(
            shape_progress(f"{label} {k}", best_loss=loss, best_text="2.5000 nats", best="lr 2^-6 x" * 9)
            for k in range(shapes)
        ),
        running=tuple(running_stack(f"{label} {k}", loss_nats=loss) for k in range(stacks)),
    )
    lines = drawn(progress_table(shown, width=width, height=height), width)
    # A heading each, and a row each that says what was left out: a terminal this low shows the top of it.
    line = len(textwrap.wrap(f"made: {status_text(shown)}", width - 1))
    assert len(lines) <= max(height - 1, line + 2 * (LEAST_ROWS + 2))
    assert "ETA 8 s" in " ".join(lines[:line])
    assert all(len(line) <= width for line in lines)
    assert "nan" not in "\n".join(lines)


def test_shapes_with_work_to_do_are_shown_before_those_that_are_done() -> None:
    many = [shape_progress(f"w{k}", finished=10) for k in range(50)]
    many[37] = shape_progress("w37", finished=3, running=2)
    text = "\n".join(drawn(progress_table(run_status(shapes=tuple(many)), width=100, height=12), 100))
    assert "w37 " in text
    assert "... and 44 more shapes: 440/440 trials done" in text


def test_off_a_terminal_the_last_state_is_printed_once() -> None:
    out, silent = io.StringIO(), io.StringIO()
    counts, stack, event = RunCounts(planned({BASE: (10, 0)})), stack_of(BASE, 1), Progress(tokens=64)
    with LiveProgress(Console(file=out, width=200)) as live, LiveProgress(Console(file=silent)):
        for _ in range(3):
            counts.add(stack, event)
            live(stack, event, counts)
    assert (out.getvalue().count("\n"), "trials 0/10 done" in out.getvalue()) == (1, True)
    assert silent.getvalue() == ""  # a run without events


def test_off_a_terminal_lines_come_now_and_then_and_decisions_at_once(monkeypatch: Patch) -> None:
    out = io.StringIO()
    counts, stack, event = RunCounts(planned({BASE: (10, 0)})), stack_of(BASE, 1), Progress(tokens=64)
    with LiveProgress(Console(file=out, width=30)) as live:
        counts.note("widened to 2^-9, the optimum was on the edge")
        for _ in range(2):
            live(stack, event, counts)
        assert out.getvalue() == "search: widened to 2^-9, the optimum was on the edge\n"
        monkeypatch.setattr(progress, "PLAIN_LINE_S", 0.0)
        live(stack, event, counts)
        assert out.getvalue().count("trials 0/10") == 1


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, ValueError])
def test_the_terminal_is_given_back_whatever_ended_the_run(end: type[BaseException] | None) -> None:
    out, counts, stack = io.StringIO(), RunCounts(planned({BASE: (10, 0)})), stack_of(BASE, 1)
    counts.add(stack, event := Progress(tokens=64))
    with (
        pytest.raises(end) if end else nullcontext(),
        LiveProgress(Console(file=out, width=80, height=24, force_terminal=True)) as live,
    ):
        live(stack, event, counts)
        if end is not None:
            raise end
    text = out.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert "trials 0/10 done" in text[text.rindex(SHOW) :]
