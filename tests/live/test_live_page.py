"""What a live page says of a run, at every moment that a run has."""

from __future__ import annotations

from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest
from made_runs import Clock, run_status, running_stack, shape_progress

from hpxfer.live.judging import Judged, Judging
from hpxfer.live.page import RunPart, run_html
from hpxfer.live.state import WATCHED_S, LiveState
from hpxfer.live.tables import shapes_table, stacks_table
from hpxfer.progress.file import State, write
from hpxfer.progress.watch import RunView, view_now
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.store.location import location_at

EVIL = "<b>\"&'{{ 7*7 }}"


def seen(folder: Path, state: State | None = "running", **changed: object) -> RunView:
    """Return the view of a folder whose driver has reported this; without a state none has."""
    if state is not None:
        write(folder, state=state, run="a", counter=1, run_status=run_status(**changed))
        if state == "running":
            (folder / LEASE_FILE).write_text("1")
    return view_now(location_at(folder))


def text_of(view: RunView | None, **given: str) -> str:
    return run_html(RunPart(view=view, **given))


def test_a_running_run_shows_its_shapes_its_stacks_and_what_is_missing(tmp_path: Path) -> None:
    shapes = (
        shape_progress(
            "w16 d1",
            num_stored=2,
            finished=3,
            diverged=1,
            failed=1,
            running=2,
            best_loss=2.5,
            best_text="2.5000 nats",
            best="lr 2^-6",
        ),
        shape_progress("w32 d1"),
    )
    html = text_of(
        seen(tmp_path, running=(running_stack(alive=7),), shapes=shapes, notes=("widened",), errors=("bug",))
    )
    assert "Running (" in html
    assert "trials 3/10 done, 1 failed, 1 diverged | 100 tokens/s | ETA 8 s" in html
    assert '<progress aria-label="Trials done" max="10" value="3">' in html
    for text in ("w16 d1", "w32 d1", "2.5000", "lr 2^-6", "node-1 123", "Running stacks", "widened", "bug"):
        assert text in html
    table = shapes_table(shapes)
    names = [column.name for column in table.columns]
    assert names == [
        *("shape", "trials", "done", "running", "missing", "diverged", "failed", "best so far", "at"),
    ]
    assert table.rows[0] == ("w16 d1", 10, 6, 2, 4, 1, 1, "2.5000 nats", "lr 2^-6")
    assert table.rows[1] == ("w32 d1", 10, 0, 0, 10, 0, 0, None, None)


def test_trials_that_were_stopped_early_have_a_column_where_there_are_any() -> None:
    names = [column.name for column in shapes_table([shape_progress(stopped=2)]).columns]
    assert "stopped early" in names


def test_a_stack_says_how_far_it_is_and_how_many_diverged() -> None:
    (row,) = stacks_table([running_stack(alive=5, host="")], "Running stacks").rows
    assert row == ("w16 d1", 8, 3, 30, 100, 2.5, "12 s", None)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("ended", "The run has ended."),
        ("stopped", "The run was stopped before its end ("),
        (None, "No run has reported here."),
    ],
)
def test_every_end_of_a_run_is_said_in_words(state: State | None, words: str, tmp_path: Path) -> None:
    html = text_of(seen(tmp_path, state, running=(running_stack(),), shapes=(shape_progress(running=77),)))
    assert words in html
    assert ">77<" not in html
    assert "ETA" not in html
    assert ("the same `hpxfer run` trains the rest" in html) is (state == "stopped")
    assert ("Stacks at the last report of the driver" in html) is (state is not None)


def test_a_driver_that_is_gone_and_one_that_has_said_nothing(tmp_path: Path) -> None:
    seen(tmp_path)
    (tmp_path / LEASE_FILE).unlink()
    assert "The driver is gone (" in text_of(view_now(location_at(tmp_path)))
    (tmp_path / "progress.json").unlink()
    (tmp_path / LEASE_FILE).write_text("1")
    assert "A driver holds the folder; it has reported nothing yet." in text_of(view_now(location_at(tmp_path)))
    assert "Nothing is known of a run yet; this page waits for one." in text_of(None, problem="no folder")


def test_what_a_driver_writes_is_text_and_nothing_else(tmp_path: Path) -> None:
    stack = running_stack(EVIL, host=EVIL)
    shapes = (shape_progress(EVIL, best=EVIL, best_loss=1.0),)
    html = text_of(
        seen(tmp_path, running=(stack,), shapes=shapes, notes=(EVIL,), num_notes=1, errors=(EVIL,)),
        problem=EVIL,
        report=EVIL,
    )
    assert "<b>" not in html
    assert unescape(html).count(EVIL) >= 8


@dataclass
class Stub:
    """A judge who has said this."""

    judged: Judged
    is_busy: bool = False


@pytest.mark.parametrize(
    ("stub", "text"),
    [
        (Stub(Judged()), "There is no report yet."),
        (Stub(Judged(), is_busy=True), "The first report is being made."),
        (Stub(Judged(why_not="no trial")), "There is no report yet. The newest results cannot be judged: no trial."),
        (Stub(Judged(number=1, made_at=5.0)), "The report below was made 7 s ago."),
        (Stub(Judged(number=1, made_at=5.0), is_busy=True), "was made 7 s ago. New results are being judged."),
        (
            Stub(Judged(number=2, made_at=5.0, why_not="full disk")),
            "7 s ago. The newest results cannot be judged: full disk.",
        ),
    ],
)
def test_the_page_says_how_old_its_report_is(stub: Stub, text: str) -> None:
    judging: Judging = stub  # type: ignore[assignment]
    state = LiveState("here", judging, Clock(12.0)).ask()
    assert text in state["run"]
    assert (state["report"], state["title"], state["state"]) == (stub.judged.number, "here", "unknown")


def test_a_problem_is_shown_beside_the_last_view_until_it_is_mended(tmp_path: Path) -> None:
    judging: Judging = Stub(Judged())  # type: ignore[assignment]
    state = LiveState("here", judging)
    state.show(seen(tmp_path))
    state.show_problem("progress.json is damaged")
    assert "progress.json is damaged" in state.ask()["run"]
    assert "w16 d1" in state.ask()["run"]
    state.show(seen(tmp_path))
    assert "progress.json is damaged" not in state.ask()["run"]


def test_a_page_that_has_not_asked_for_long_does_not_watch() -> None:
    judging: Judging = Stub(Judged())  # type: ignore[assignment]
    clock = Clock()
    state = LiveState("here", judging, clock)
    assert not state.is_watched
    state.ask()
    assert state.is_watched
    clock.now = WATCHED_S
    assert not state.is_watched
