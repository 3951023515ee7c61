"""The driver trains what is missing, stores what comes, and survives what a user and a machine may do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import Fails
from driver_cases import InProcess, Made, trained
from tiny import write_tiny

import hpxfer
from hpxfer.driver import TrainingFailed, prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Train
from hpxfer.host.interrupts import Interrupted
from hpxfer.progress.status import RunStatus
from hpxfer.results import load_results
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.store import Store
from hpxfer.trial.result import ErrorKind, TrialResult

NUMBERS = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]


def test_local_processes_give_the_bits_of_this_process_and_a_second_run_trains_nothing(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    here = run(sweep, results=tmp_path / "here", executor=InProcess())
    there = run(sweep, results=tmp_path / "there")
    pd.testing.assert_frame_equal(
        here.trials[NUMBERS].sort_values("trial_id", ignore_index=True),
        there.trials[NUMBERS].sort_values("trial_id", ignore_index=True),
    )
    assert set(there.trials["status"]) == {"finished"}
    assert len(there.trials) == 30  # 5 LRs x 2 seeds, the base shared by both parameterizations
    assert len(there.cells) == 40
    second = InProcess()
    again = run(sweep, results=tmp_path / "there", executor=second)
    assert second.given == []
    pd.testing.assert_frame_equal(again.trials, there.trials)


def test_the_sweep_file_of_a_results_folder_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(write_tiny(tmp_path), results=tmp_path / "mine", executor=Fails(0))
    folder = tmp_path / "mine" / "tiny"
    stored = prepare(folder / "sweep.yaml")
    assert (stored.folder, stored.missing) == (folder, ())
    monkeypatch.chdir(folder)
    found = prepare("sweep.yaml")
    assert (found.folder, found.missing) == (folder, ())
    assert prepare("sweep.yaml", results=tmp_path / "other").folder == tmp_path / "other" / "tiny"
    folder.rename(tmp_path / "mine" / "renamed")
    monkeypatch.chdir(tmp_path)
    assert prepare("mine/renamed/sweep.yaml").folder == Path("results/tiny")


@pytest.mark.slow
def test_an_edited_sweep_trains_only_its_new_cells(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=Made())
    wider = Made()
    run(write_tiny(tmp_path, ("[16, 32]", "[16, 32, 64]"), ("seeds: 2", "seeds: 3")), results=tmp_path, executor=wider)
    assert trained(wider) == 15 + 20 + 10  # a third seed of the 15 cells there were, and width 64
    renamed = Made()
    run(write_tiny(tmp_path, ("workers: 2", "workers: 1, stack_size: 3")), results=tmp_path, executor=renamed)
    assert renamed.given == []


@pytest.mark.first
@pytest.mark.parametrize(
    ("edit", "num_new"),
    [
        (("[16, 32]", "[16, 32, 64]"), 20),
        (("seeds: 2", "seeds: 3"), 15),
        (("{log2: [-8, -4]}", "{log2: [-9, -3]}"), 12),
        (("{log2: [-8, -4]}", "{log2: [-8, -4], step: 0.5}"), 24),
        (("parameterizations: [completep-moe, sp]", "parameterizations: [completep-moe, sp, mup]"), 10),
        (("[16, 32]", "[16]"), 0),
        (("seeds: 2", "seeds: [1]"), 0),
        (("name: tiny", "name: tiny  # a comment"), 0),
        (("steps: 6", "steps: 7"), 30),
    ],
)
def test_an_edit_trains_what_it_adds_and_nothing_else(tmp_path: Path, edit: tuple[str, str], num_new: int) -> None:
    before = run(write_tiny(tmp_path), results=tmp_path, executor=Made()).trials
    sweep, executor = write_tiny(tmp_path, edit), Made()
    job = prepare(sweep, results=tmp_path)
    assert (len(job.missing), job.plan.num_left) == (num_new, num_new)
    after = run(job, executor=executor).trials
    assert trained(executor) == num_new
    assert len(after) == 30 + num_new
    old = after[after["trial_id"].isin(before["trial_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(old, before)


def test_failed_trials_are_tried_again_and_finished_ones_are_not(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    first = run(sweep, results=tmp_path, executor=Made(fail=3))
    assert (first.trials["status"] == "failed").sum() == 3
    second = Made()
    last = run(sweep, results=tmp_path, executor=second)
    assert trained(second) == 3
    assert set(last.trials["status"]) == {"finished"}
    assert last.trials["trial_id"].is_unique


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 4"))
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=Made(stop_after=2))
    assert prepare(sweep, results=tmp_path).plan.num_done == 7  # of the ten at the base, which are stacks of 4, 3 and 3
    rest = Made()
    run(sweep, results=tmp_path, executor=rest)
    assert trained(rest) == 30 - 7


def test_the_counts_are_those_of_the_events(tmp_path: Path) -> None:
    seen: list[RunStatus] = []
    run(
        write_tiny(tmp_path),
        results=tmp_path,
        executor=Made(fail=2),
        on_event=lambda _, __, counts: seen.append(counts.run_status()),
    )
    assert (seen[-1].ended, seen[-1].failed) == (30, 2)
    assert seen[-1].tokens == len(seen) // 2


def test_an_executor_that_ends_early_is_said_so(tmp_path: Path) -> None:
    class Lazy(InProcess):
        def run(self, more: More, train: Train, on_event: OnEvent) -> None:
            """Report nothing."""

    with pytest.raises(HpxferError, match="ended with 0 of 30 trials; run again to train the rest"):
        run(write_tiny(tmp_path), results=tmp_path, executor=Lazy())


def test_a_store_that_breaks_midway_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 10"))
    append, calls = Store.append, []

    def full(store: Store, pairs: Sequence[object]) -> None:
        calls.append(len(pairs))
        if len(calls) == 2:
            raise HpxferError("results/tiny: cannot be written: No space left on device")
        append(store, pairs)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(HpxferError, match="No space left"):
        run(sweep, results=tmp_path, executor=Made())
    monkeypatch.undo()
    assert prepare(sweep, results=tmp_path).plan.num_done == 10


def test_the_python_names_that_the_readme_shows(tmp_path: Path) -> None:
    spec = hpxfer.load_sweep(write_tiny(tmp_path))
    results = hpxfer.run(spec, results=tmp_path, executor=InProcess())
    report = hpxfer.transfer_report(hpxfer.load_results(results.folder))
    json.dumps(report.to_dict(), allow_nan=False)
    assert {finding.parameterization for finding in report.findings} == {"completep-moe", "sp"}
    assert hpxfer.Recipe.__name__ == "Recipe"


class Stumbles(Made):
    """An executor whose first stack fails for a reason of this kind."""

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__()
        self.kind = kind

    def _result(self, trial_id: str) -> TrialResult:
        if len(self.given) > 1:
            return super()._result(trial_id)
        return TrialResult(trial_id=trial_id, status="failed", error=f"Traceback: {self.kind}", error_kind=self.kind)


@pytest.mark.parametrize("kind", ["bug", "input"])
def test_what_all_trials_would_fail_of_stops_the_run_at_once(tmp_path: Path, kind: ErrorKind) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 5"))
    executor = Stumbles(kind)
    with pytest.raises(TrainingFailed, match=f"^Traceback: {kind}$") as error:
        run(sweep, results=tmp_path, executor=executor)
    assert error.value.num_failed == 5
    assert len(executor.given) == 1
    rows = load_results(tmp_path / "tiny").trials
    assert set(zip(rows["status"], rows["error_kind"], strict=True)) == {("failed", kind)}
    assert len(rows) == 5
    assert not (tmp_path / "tiny" / LEASE_FILE).exists()
    again = Made()
    run(sweep, results=tmp_path, executor=again)
    assert trained(again) == 30


@pytest.mark.parametrize("kind", ["memory", "lost"])
def test_what_only_some_trials_fail_of_does_not_stop_the_run(tmp_path: Path, kind: ErrorKind) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 5"))
    executor = Stumbles(kind)
    results = run(sweep, results=tmp_path, executor=executor)
    assert trained(executor) == 30
    assert results.trials["status"].value_counts().to_dict() == {"finished": 25, "failed": 5}


def test_a_clock_that_jumps_back_loses_nothing(tmp_path: Path) -> None:
    """A trial that finished counts, however late a failure of it says that it was."""

    class Dated(Made):
        def __init__(self, finished_at: str, fail: int = 0) -> None:
            super().__init__(fail)
            self.finished_at = finished_at

        def _result(self, trial_id: str) -> TrialResult:
            return replace(super()._result(trial_id), finished_at=self.finished_at)

    sweep = write_tiny(tmp_path)
    run(sweep, results=tmp_path, executor=Dated("2099-01-01T00:00:00+00:00", fail=30))
    run(sweep, results=tmp_path, executor=Dated("1970-01-01T00:00:00+00:00"))
    last = run(sweep, results=tmp_path, executor=Made())
    assert set(last.trials["status"]) == {"finished"}
    assert set(last.trials["finished_at"]) == {"1970-01-01T00:00:00+00:00"}


def test_a_signal_waits_until_results_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 5"))
    append, before = Store.append, signal.getsignal(signal.SIGTERM)

    def signaled(store: Store, pairs: Sequence[object]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        append(store, pairs)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "append", signaled)
    with pytest.raises(Interrupted) as error:
        run(sweep, results=tmp_path, executor=Made())
    assert error.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert prepare(sweep, results=tmp_path).plan.num_done == 5
    assert not (tmp_path / "tiny" / LEASE_FILE).exists()
