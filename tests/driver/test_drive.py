"""The driver trains what is missing, stores what comes, reuses what is elsewhere, and is alone in its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import Fails
from fixture_types import Patch
from lease_holder import holder_of
from made_executors import InProcess, Made, trained
from tiny import write_tiny

from hpxfer.driver import TrainingFailed, prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.results import load_results
from hpxfer.storage import lease
from hpxfer.storage.lease import LEASE_FILE, Holder, LeaseFile, encoded
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


def test_the_sweep_file_of_a_results_folder_goes_on_there(tmp_path: Path, monkeypatch: Patch) -> None:
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


def test_an_executor_that_ends_early_is_said_so(tmp_path: Path) -> None:
    class Lazy(InProcess):
        def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
            """Report nothing."""

    with pytest.raises(HpxferError, match="ended with 0 of 30 trials; run again to train the rest"):
        run(write_tiny(tmp_path), results=tmp_path, executor=Lazy())


def test_a_store_that_breaks_midway_keeps_what_it_has(tmp_path: Path, monkeypatch: Patch) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 10"))
    append, calls = Store.append, []

    def full(store: Store, pairs: Sequence[object]) -> None:
        calls.append(len(pairs))
        if len(calls) == 2:
            raise HpxferError("results/tiny: cannot be written: No space left on device")
        append(store, pairs)

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(HpxferError, match="No space left"):
        run(sweep, results=tmp_path, executor=Made())
    monkeypatch.undo()
    assert prepare(sweep, results=tmp_path).plan.num_done == 10


class Stumbles(Made):
    """An executor whose first stack fails for a reason of this kind."""

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__()
        self.kind = kind

    def _result(self, trial_id: str) -> TrialResult:
        if len(self.given) > 1:
            return super()._result(trial_id)
        return TrialResult(trial_id=trial_id, status="failed", error=f"Traceback: {self.kind}", error_kind=self.kind)


FIVE = ("workers: 2", "workers: 2, stack_size: 5")


@pytest.mark.parametrize("kind", ["bug", "input"])
def test_what_all_trials_would_fail_of_stops_the_run_at_once(tmp_path: Path, kind: ErrorKind) -> None:
    sweep, executor = write_tiny(tmp_path, FIVE), Stumbles(kind)
    with pytest.raises(TrainingFailed, match=f"^Traceback: {kind}$") as error:
        run(sweep, results=tmp_path, executor=executor)
    assert (error.value.num_failed, len(executor.given)) == (5, 1)
    rows = load_results(tmp_path / "tiny").trials
    assert list(zip(rows["status"], rows["error_kind"], strict=True)) == [("failed", kind)] * 5
    assert not (tmp_path / "tiny" / LEASE_FILE).exists()
    again = Made()
    run(sweep, results=tmp_path, executor=again)
    assert trained(again) == 30


@pytest.mark.parametrize("kind", ["memory", "lost"])
def test_what_only_some_trials_fail_of_does_not_stop_the_run(tmp_path: Path, kind: ErrorKind) -> None:
    executor = Stumbles(kind)
    results = run(write_tiny(tmp_path, FIVE), results=tmp_path, executor=executor)
    assert trained(executor) == 30
    assert results.trials["status"].value_counts().to_dict() == {"finished": 25, "failed": 5}


def test_results_of_other_folders_are_copied_with_their_curves_and_not_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    result = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=InProcess())
    before = {path.name: path.read_bytes() for path in result.folder.iterdir()}
    more = write_tiny(tmp_path, ("seeds: 2", "seeds: 3"), ("name: tiny", "name: other"))
    job, executor, again = prepare(more, results=tmp_path, reuse=[result.folder]), Made(), Made()
    assert job.reuse.counts() == {str(result.folder): 30}
    assert (job.plan.num_done, len(job.missing), job.folder.exists()) == (30, 15, False)
    results = run(job, executor=executor)
    assert trained(executor) == 15
    assert {path.name: path.read_bytes() for path in result.folder.iterdir()} == before
    ids = result.trials["trial_id"]
    copied = results.trials[results.trials["trial_id"].isin(ids)].reset_index(drop=True)
    pd.testing.assert_frame_equal(copied, result.trials, check_dtype=False)  # made-up results lack some numbers
    by = ["trial_id", "metric", "layer", "role", "step"]
    theirs, ours = (
        table[table["trial_id"].isin(ids)][[*by, "value"]].astype({"metric": str, "role": str}).sort_values(by)
        for table in (result.curves, results.curves)
    )
    pd.testing.assert_frame_equal(ours.reset_index(drop=True), theirs.reset_index(drop=True), check_categorical=False)
    run(more, results=tmp_path, reuse=[result.folder], executor=again)
    assert again.given == []


def test_what_a_reused_folder_can_give_no_more_is_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    result = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made())
    job = prepare(write_tiny(tmp_path), results=tmp_path, reuse=[result.folder])
    assert job.reuse.counts() == {str(result.folder): 30}
    (result.folder / "trials.parquet").unlink()  # after a look at it
    executor = Made()
    assert len(run(job, executor=executor).trials) == trained(executor) == 30


def test_only_what_is_done_is_reused_and_the_first_folder_counts(tmp_path: Path) -> None:
    for name, fail in (("one", 4), ("two", 7)):
        (tmp_path / name).mkdir()
        run(write_tiny(tmp_path / name), results=tmp_path / name, executor=Made(fail=fail))
    sweep = write_tiny(tmp_path)
    job = prepare(sweep, results=tmp_path, reuse=[tmp_path / "one" / "tiny", tmp_path / "two" / "tiny"])
    counts = job.reuse.counts()
    assert counts[str(tmp_path / "one" / "tiny")] == 26
    executor = Made()
    run(job, executor=executor)
    assert trained(executor) == len(job.missing) == 30 - sum(counts.values())


def test_a_reused_folder_must_be_another_results_folder(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    own = run(sweep, results=tmp_path, executor=Made()).folder
    with pytest.raises(HpxferError, match=r"must be a results folder with sweep\.yaml, got none"):
        prepare(sweep, results=tmp_path, reuse=[tmp_path])
    with pytest.raises(HpxferError, match="must be another folder than the sweep's own"):
        prepare(sweep, results=tmp_path, reuse=[own])


def test_a_driver_that_loses_its_lease_stops_and_writes_nothing(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 5"))
    folder, events = tmp_path / "tiny", 0

    def steal(*_: object) -> None:
        nonlocal events
        events += 1
        if events == 3:  # progress and results of the first stack, and progress of the second
            (folder / LEASE_FILE).write_bytes(encoded(Holder(nonce="x", host="elsewhere", pid=42)))

    with pytest.raises(HpxferError, match="was taken over by process 42 on host elsewhere"):
        run(sweep, results=tmp_path, executor=Made(), on_event=steal)
    assert len(Store.open(folder, write=False).done_ids()) == 5
    holder = holder_of(folder)
    assert holder.nonce == "x"


def test_a_second_driver_is_refused_and_the_first_is_not_disturbed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    sweep, executor, refused = write_tiny(tmp_path), Made(), list[str]()

    def second(*_: object) -> None:
        if not refused:
            holder = holder_of(tmp_path / "tiny")
            assert holder is not None
            old, moved = encoded(holder), encoded(replace(holder, counter=5))

            def move(_: str) -> None:
                LeaseFile(tmp_path / "tiny").swap(old, moved)

            with pytest.raises(HpxferError) as error:
                run(sweep, results=tmp_path, executor=Made(), on_wait=move)
            refused.append(str(error.value))

    run(sweep, results=tmp_path, executor=executor, on_event=second)
    assert f"in use by process {os.getpid()} on host" in refused[0]
    assert trained(executor) == 30


def test_what_another_driver_did_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    job = prepare(sweep, results=tmp_path)
    run(sweep, results=tmp_path, executor=Made())
    late = Made()
    run(job, executor=late)
    assert late.given == []
