"""The live picture says what is done, how fast it goes and how long it will take, and leaves the terminal sane."""

from __future__ import annotations

import io
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import planned, run_status, running_stack, shape_progress, stack_of
from rich.console import Console, RenderableType
from tiny_trials import BASE

from hpxfer.host.output import spell_time
from hpxfer.progress import live as progress
from hpxfer.progress.counts import run_counts
from hpxfer.progress.live import LiveProgress
from hpxfer.progress.status import RunStatus
from hpxfer.progress.table import LEAST_ROWS, progress_table, status_text
from hpxfer.trial.events import Progress

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
    best = shape_progress(
        "w32 d2 E4A1 h32",
        num_stored=4,
        finished=2,
        best_loss=1.23456,
        best_text="1.2346 nats",
        best="lr 2^-6 sp",
        running=8,
    )
    stacks = (running_stack("w32 d2 E4A1 h32", alive=5), running_stack("w64 d2", alive=0, loss_nats=None, step=100))
    text = "\n".join(drawn(progress_table(run_status(shapes=(best,), running=stacks), width=120, height=40), 120))
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
    out = io.StringIO()
    counts, stack = run_counts(planned({BASE: (10, 0)})), stack_of(BASE, 1)
    with LiveProgress(Console(file=out, width=200)) as live:
        for _ in range(3):
            counts.add(stack, Progress(tokens=64))
            live(stack, Progress(tokens=64), counts)
    assert out.getvalue().count("\n") == 1
    assert "trials 0/10 done" in out.getvalue()


def test_off_a_terminal_lines_come_now_and_then_and_decisions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    counts, stack, event = run_counts(planned({BASE: (10, 0)})), stack_of(BASE, 1), Progress(tokens=64)
    with LiveProgress(Console(file=out, width=30)) as live:
        counts.note("widened to 2^-9, the optimum was on the edge")
        for _ in range(2):
            live(stack, event, counts)
        assert out.getvalue() == "search: widened to 2^-9, the optimum was on the edge\n"
        monkeypatch.setattr(progress, "PLAIN_LINE_S", 0.0)
        live(stack, event, counts)
        assert out.getvalue().count("trials 0/10") == 1


def test_a_run_without_events_prints_nothing() -> None:
    out = io.StringIO()
    with LiveProgress(Console(file=out)):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, ValueError])
def test_the_terminal_is_given_back_whatever_ended_the_run(end: type[BaseException] | None) -> None:
    out = io.StringIO()
    counts, stack, event = run_counts(planned({BASE: (10, 0)})), stack_of(BASE, 1), Progress(tokens=64)
    counts.add(stack, event)

    def run() -> None:
        with LiveProgress(Console(file=out, width=80, height=24, force_terminal=True)) as live:
            live(stack, event, counts)
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(end):
            run()
    text = out.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert "trials 0/10 done" in text[text.rindex(SHOW) :]


def test_a_picture_can_be_drawn_of_nothing() -> None:
    empty: RunStatus = run_status(
        shapes=(), running=(), finished=0, diverged=0, failed=0, num_left=0, tokens_per_s=None
    )
    assert drawn(progress_table(empty, width=80, height=24), 80)[0].startswith("made: trials 0/0 done")
