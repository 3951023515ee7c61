"""Loggers in a run: they show the stored curves while trials train, and no run fails or waits because of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from fixture_types import Caplog, Patch
from made_executors import InProcess
from recorded_logger import Recorder
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, LoggerKind, Place
from hpxfer.progress.counts import RunCounts
from hpxfer.results import Results
from hpxfer.train import trainer
from hpxfer.trial.events import Event, Progress
from hpxfer.trial.stack import Stack

LOGGED = ("workers: 2", "workers: 2, stack_size: 2, loggers: [mine]")
FEW = ("seeds: 2", "seeds: 1")


@pytest.fixture
def recorder(monkeypatch: Patch) -> Iterator[Recorder]:
    """The logger `mine`. Training reports after every step."""
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.0)
    made = Recorder()
    with LOGGERS.registered(made.kind()):
        yield made


def curves(results: Results) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return (trial id, metric as loggers name it) -> points."""
    table = results.curves
    layer = table["layer"].map(lambda layer: None if pd.isna(layer) else f"layer{layer:.0f}")
    parts = zip(table["metric"], table["role"], layer, strict=True)
    table = table.assign(name=["/".join(part for part in row if isinstance(part, str)) for row in parts])
    groups = table.sort_values("step").groupby(["trial_id", "name"], observed=True)
    return {key: list(zip(rows["step"], rows["value"], strict=True)) for key, rows in groups}


@pytest.mark.slow
def test_what_is_logged_is_what_is_stored_and_no_other_logger_nor_a_second_run_changes_it(
    recorder: Recorder, tmp_path: Path, caplog: Caplog
) -> None:
    def fail(what: str) -> None:
        if what == "log":
            raise ConnectionError("the server is gone")

    sweep = write_tiny(tmp_path, (LOGGED[0], LOGGED[1].replace("[mine]", "[broken, mine]")))
    with caplog.at_level(logging.WARNING), LOGGERS.registered(Recorder(before=fail).kind("broken")):
        results = run(sweep, results=tmp_path, executor=InProcess())
        calls = len(recorder.seen)
        run(sweep, results=tmp_path, executor=InProcess())
    assert len(recorder.seen) == calls
    (said,) = [record.getMessage() for record in caplog.records if "loggers" in record.name]
    assert said.startswith("resources.loggers: broken failed and is left out from here on: the server is gone")
    assert set(results.trials["status"]) == {"finished"}
    stored = curves(results)
    assert len(stored) > 10 * len(results.trials)
    for (trial_id, metric), points in stored.items():
        assert recorder.curve(trial_id, metric) == points
    logged = [(trial.id, row) for what, trial, some in recorder.seen if what == "log" for row in some.values()]
    assert {(trial_id, metric) for trial_id, row in logged for metric in row} == set(stored)
    losses = dict(zip(results.trials["trial_id"], results.trials["validation_loss_nats"], strict=True))
    assert {key: final.values["validation_loss_nats"] for key, final in recorder.ends().items()} == losses


@pytest.mark.slow
def test_names_hold_the_round_of_the_search(recorder: Recorder, tmp_path: Path) -> None:
    search = ("seeds: 2", "seeds: 1\nsearch: {kind: refine}")
    results = run(write_tiny(tmp_path, LOGGED, search), results=tmp_path, executor=InProcess())
    opened = {trial.id: trial for what, trial, _ in recorder.seen if what == "open"}
    assert set(opened) == set(results.trials["trial_id"])
    assert len({trial.name for trial in opened.values()}) == len(opened)
    rounds = {trial.config["round"] for trial in opened.values()}
    assert {1, 2} <= rounds
    for trial in opened.values():
        assert f"/round={trial.config['round']}/" in trial.name


def test_an_interrupted_trial_is_closed_as_such_and_opened_again_by_the_next_run(
    recorder: Recorder, tmp_path: Path
) -> None:
    def interrupt(_: Stack, event: Event, __: RunCounts) -> None:
        if isinstance(event, Progress) and event.step == 3:
            raise KeyboardInterrupt

    sweep = write_tiny(tmp_path, LOGGED, FEW)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=InProcess(), on_event=interrupt)
    ends = recorder.ends()
    assert {final.status for final in ends.values()} == {"interrupted"}
    assert len(ends) == 2
    recorder.seen.clear()
    results = run(sweep, results=tmp_path, executor=InProcess())
    assert {final.status for final in recorder.ends().values()} == {"finished"}
    for trial_id in ends:
        assert recorder.curve(trial_id, "train_loss_nats") == curves(results)[trial_id, "train_loss_nats"]


def test_a_logger_that_cannot_log_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def require() -> None:
        raise HpxferError("resources.loggers: mine must have an account")

    executor = InProcess()
    with LOGGERS.registered(LoggerKind(name="mine", require=require, make=lambda place: Recorder())):
        with pytest.raises(HpxferError, match=r"tiny\.yaml:\d+: resources\.loggers: mine must have an account"):
            run(write_tiny(tmp_path, LOGGED), results=tmp_path, executor=executor)
        assert executor.given == []
        assert not (tmp_path / "tiny").exists()


def test_a_logger_that_cannot_be_made_leaves_no_checkpoints(tmp_path: Path) -> None:
    def make(place: Place) -> Recorder:
        assert (tmp_path / "tiny/checkpoints").exists()
        raise OSError("no folder")

    kind = LoggerKind(name="mine", require=lambda: None, make=make)
    with LOGGERS.registered(kind), pytest.raises(OSError, match="no folder"):
        run(write_tiny(tmp_path, LOGGED), results=tmp_path, executor=InProcess())
    assert not (tmp_path / "tiny/checkpoints").exists()
