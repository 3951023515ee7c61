"""The driver trains what is missing, stores what comes, and survives what a user and a machine may do."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny import write_tiny

import hpxfer
from hpxfer import lease, search, trial
from hpxfer.driver import TrainingFailed, longest_first, measured, prepare, run
from hpxfer.driver import job as driver_job
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Train
from hpxfer.interrupts import Interrupted
from hpxfer.lease import Holder, encoded, holder_of
from hpxfer.lease_slot import LEASE_FILE, FileSlot
from hpxfer.result import ErrorKind, TrialResult
from hpxfer.results import Results, load_results
from hpxfer.search import Outcome
from hpxfer.shape import Shape
from hpxfer.stack import Device, Measured, Stack
from hpxfer.store import Store, rows
from hpxfer.tally import Tally
from hpxfer.train.event import Progress
from hpxfer.trial import TRAINER_VERSION, Expansion

NUMBERS = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]


class InProcess:
    """An executor that trains in this process and remembers the stacks it was given."""

    def __init__(self) -> None:
        self.given: list[Stack] = []

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        while stacks := more(1):
            self.given += stacks
            for stack in stacks:
                for event in train(stack):
                    on_event(stack, event)


class Made(InProcess):
    """An executor that makes results up; `fail` trials fail."""

    def __init__(self, fail: int = 0, stop_after: int | None = None) -> None:
        super().__init__()
        self.fail, self.stop_after = fail, stop_after

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        while stacks := more(1):
            for stack in stacks:
                if len(self.given) == self.stop_after:
                    raise KeyboardInterrupt
                self.given.append(stack)
                on_event(stack, Progress(tokens=1))
                on_event(stack, tuple(self._result(trial.id) for trial in stack.trials))

    def _result(self, trial_id: str) -> TrialResult:
        if self.fail > 0:
            self.fail -= 1
            return TrialResult(trial_id=trial_id, status="failed", error="Traceback: a bug")
        return TrialResult(trial_id=trial_id, status="finished", validation_loss_nats=2.0, final_window_loss_nats=2.0)


def trained(executor: InProcess) -> int:
    return sum(len(stack.trials) for stack in executor.given)


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


def test_an_edited_sweep_trains_only_its_new_cells(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=Made())
    wider = Made()
    run(write_tiny(tmp_path, ("[16, 32]", "[16, 32, 64]"), ("seeds: 2", "seeds: 3")), results=tmp_path, executor=wider)
    assert trained(wider) == 15 + 20 + 10  # a third seed of the 15 cells there were, and width 64
    renamed = Made()
    run(write_tiny(tmp_path, ("workers: 2", "workers: 1, stack_size: 3")), results=tmp_path, executor=renamed)
    assert renamed.given == []


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


def test_time_is_measured_on_trials_of_the_same_length(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=InProcess())
    more = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path).plan
    assert more.rate_from.startswith("measured: 2 of 2 shapes, from the store")
    longer = prepare(write_tiny(tmp_path, ("steps: 6", "steps: 600")), results=tmp_path).plan
    assert not any(one.is_measured for one in longer.shapes)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 4"))
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=Made(stop_after=2))
    assert prepare(sweep, results=tmp_path).plan.num_done == 2 * 4
    rest = Made()
    run(sweep, results=tmp_path, executor=rest)
    assert trained(rest) == 30 - 8


def test_the_tally_counts_what_comes(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    run(
        write_tiny(tmp_path),
        results=tmp_path,
        executor=Made(fail=2),
        on_event=lambda _, __, tally: seen.append((tally.ended, tally.failed, tally.tokens)),
    )
    assert seen[-1][:2] == (30, 2)
    assert seen[-1][2] == len(seen) // 2


def test_an_executor_that_ends_early_is_said_so(tmp_path: Path) -> None:
    class Lazy(InProcess):
        def run(self, more: More, train: Train, on_event: OnEvent) -> None:
            """Report nothing."""

    with pytest.raises(HpxferError, match="ended with 0 of 30 trials; run again to go on"):
        run(write_tiny(tmp_path), results=tmp_path, executor=Lazy())


def test_the_costliest_stacks_go_first(tmp_path: Path) -> None:
    job = prepare(write_tiny(tmp_path), results=tmp_path)
    flops = [stack.flops for stack in longest_first(job.missing, job)]
    assert flops == sorted(flops, reverse=True)
    assert flops[0] > flops[-1]


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


def test_planning_writes_nothing(tmp_path: Path) -> None:
    prepare(write_tiny(tmp_path), results=tmp_path / "results")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_the_python_names_that_the_readme_shows(tmp_path: Path) -> None:
    spec = hpxfer.load_sweep(write_tiny(tmp_path))
    results = hpxfer.run(spec, results=tmp_path, executor=InProcess())
    report = hpxfer.transfer_report(hpxfer.load_results(results.folder))
    json.dumps(report.to_dict(), allow_nan=False)
    assert {finding.parameterization for finding in report.findings} == {"completep-moe", "sp"}
    assert hpxfer.Recipe.__name__ == "Recipe"


def test_measured_time_is_that_of_the_very_shape_its_run_included(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "duration: [12]"), ("seeds: 2", "seeds: 1"))
    results = run(sweep, results=tmp_path, executor=InProcess())
    found = measured(Store.open(results.folder, write=False), cuda=False)
    assert {shape.label(schedule=True) for shape in found} == {
        "w16 d1 E2A1 h16 b64 t6",
        "w16 d1 E2A1 h16 b64 t12",
    }
    plan = prepare(sweep, results=tmp_path).plan
    assert plan.rate_from.startswith("measured: 2 of 2 shapes, from the store")
    assert {one.shape for one in plan.shapes} == set(found)
    assert all(one.trial_s and one.trial_bytes is None and one.most is None for one in found.values())
    assert measured(Store.open(results.folder, write=False), cuda=True) == {}


class Crowded(Made):
    """A GPU on which no stack of more than two trials fits."""

    def _result(self, trial_id: str) -> TrialResult:
        plain = super()._result(trial_id)
        return replace(plain, wall_s=3.0, peak_bytes=5000, stack_size=2, halvings=1, device="NVIDIA made up")


def test_a_halved_stack_is_packed_by_its_half_the_next_time(tmp_path: Path) -> None:
    folder = run(write_tiny(tmp_path), results=tmp_path, executor=Crowded()).folder
    found = measured(Store.open(folder, write=False), cuda=True)
    assert set(found.values()) == {Measured(trial_s=1.5, trial_bytes=2500.0, most=2)}
    job = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path)
    job = replace(job, device=Device(cuda=True), measured=found)
    assert {len(stack.trials) for stack in longest_first(job.missing, job)} <= {1, 2}


def test_trials_of_an_older_trainer_are_read_and_trained_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_tiny(tmp_path)
    old = run_as_version(2, sweep, tmp_path, monkeypatch)
    assert old.trainer_version == 2
    before = load_results(tmp_path / "tiny")
    assert before.trainer_version == 2
    assert set(before.cells["status"]) == {"finished"}
    job = prepare(sweep, results=tmp_path)
    assert job.plan.num_done == 0
    (caution,) = job.plan.cautions
    assert caution.startswith(f"{tmp_path / 'tiny'}: its trials were made by version 2 of the trainer")
    executor = Made()
    after = run(job, executor=executor)
    assert trained(executor) == 30
    assert after.trainer_version == TRAINER_VERSION
    assert set(after.cells["status"]) == {"finished"}
    assert len(after.trials) == 60  # the old rows stay
    assert set(before.trials["trial_id"]) < set(after.trials["trial_id"])
    assert prepare(sweep, results=tmp_path).plan.cautions == ()


def run_as_version(version: int, sweep: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Run a sweep as an hpxfer whose trainer has this version."""
    with monkeypatch.context() as patch:
        for module in (trial, rows, driver_job):
            patch.setattr(module, "TRAINER_VERSION", version)
        patch.setattr(trial.Expansion.__init__, "__defaults__", (version,))
        return run(sweep, results=results, executor=Made())


def test_fast_on_a_cpu_is_said_to_be_strict(tmp_path: Path) -> None:
    fast = write_tiny(tmp_path, ("steps: 6", "steps: 6, determinism: fast"))
    (caution,) = prepare(fast, results=tmp_path).plan.cautions
    assert "fast is the same code as strict" in caution
    results = run(fast, results=tmp_path, executor=InProcess())
    assert set(results.trials["determinism"]) == {"fast"}
    assert set(results.trials["backend"]) == {"torch"}
    assert results.trials["kernel_configs"].isna().all()


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


def test_results_of_other_folders_are_copied_with_their_curves_and_not_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=InProcess())
    before = {path.name: path.read_bytes() for path in one.folder.iterdir()}
    more = write_tiny(tmp_path, ("seeds: 2", "seeds: 3"), ("name: tiny", "name: other"))
    job = prepare(more, results=tmp_path, reuse=[one.folder])
    assert job.reuse.counts() == {str(one.folder): 30}
    assert (job.plan.num_done, len(job.missing)) == (30, 15)
    assert not job.folder.exists()
    executor = Made()
    results = run(job, executor=executor)
    assert trained(executor) == 15
    assert {path.name: path.read_bytes() for path in one.folder.iterdir()} == before
    copied = results.trials[results.trials["trial_id"].isin(one.trials["trial_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(copied, one.trials, check_dtype=False)  # made-up results lack some numbers
    of_one = results.curves[results.curves["trial_id"].isin(one.trials["trial_id"])]
    columns = ["metric", "layer", "role", "step", "value"]
    for trial_id in one.trials["trial_id"]:
        expected = one.curves[one.curves["trial_id"] == trial_id][columns].astype({"metric": str, "role": str})
        found = of_one[of_one["trial_id"] == trial_id][columns].astype({"metric": str, "role": str})
        pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))
    again = Made()
    run(more, results=tmp_path, reuse=[one.folder], executor=again)
    assert again.given == []


def test_what_a_reused_folder_can_give_no_more_is_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made())
    job = prepare(write_tiny(tmp_path), results=tmp_path, reuse=[one.folder])
    assert job.reuse.counts() == {str(one.folder): 30}
    (one.folder / "trials.parquet").unlink()  # after a look at it
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
    assert holder is not None
    assert holder.nonce == "x"


def test_a_second_driver_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    sweep = write_tiny(tmp_path)
    refused: list[str] = []

    def second(*_: object) -> None:
        if not refused:
            holder = holder_of(tmp_path / "tiny")
            assert holder is not None
            moved = encoded(replace(holder, counter=5))
            with pytest.raises(HpxferError) as error:
                run(sweep, results=tmp_path, executor=Made(), on_wait=lambda _: slot.swap(encoded(holder), moved))
            refused.append(str(error.value))

    slot = FileSlot(tmp_path / "tiny")
    executor = Made()
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


class Rounds:
    """A search of two rounds: the lowest LR at the base, then at each other shape the LRs next to it."""

    def __init__(self, expansion: Expansion) -> None:
        self.trials = list(expansion.trials())

    def ask(self, outcomes: Mapping[str, Outcome], out: Collection[str], most: int | None) -> Sequence[trial.Trial]:
        first = [one for one in self.trials if one.shape == one.base]
        second = [one for one in self.trials if one.shape != one.base and one.hps.lr < 2**-6]
        wanted = first if any(one.id not in outcomes for one in first) else second
        return [one for one in wanted if one.id not in outcomes and one.id not in out]

    def bound(self) -> Mapping[Shape, int]:
        return Counter(one.shape for one in self.trials)

    def progress(self) -> Mapping[Shape, search.Progress]:
        return {shape: search.Progress(0, most) for shape, most in self.bound().items()}

    def why(self) -> str:
        return "the base first\nthen the others"


def test_a_search_is_asked_again_when_its_trials_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, folder, metric: Rounds(expansion))
    sweep, executor, notes = write_tiny(tmp_path), Made(stop_after=1), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=executor)
    executor = Made()
    run(sweep, results=tmp_path, executor=executor, on_event=lambda _, __, tally: notes.extend(tally.notes))
    shapes = [stack.shape.width for stack in executor.given]
    assert shapes == sorted(shapes)  # the base first, though the others cost more
    assert set(shapes) == {16, 32}
    assert len(Store.open(tmp_path / "tiny", write=False).done_ids()) == 10 + 2 * 2 * 2
    assert {"the base first", "then the others"} <= set(notes)
    again = Made()
    run(sweep, results=tmp_path, executor=again)
    assert again.given == []


def test_a_search_that_goes_on_shows_the_best_that_it_had(tmp_path: Path) -> None:
    best: list[list[float | None]] = []

    def look(_: Stack, __: object, tally: Tally) -> None:
        best.append([one.best_loss_nats for one in tally.snapshot().shapes])

    for points in (3, 5):
        best.clear()
        sweep = write_tiny(tmp_path, ("seeds: 2", f"seeds: 2\nsearch: {{kind: random, points: {points}}}"))
        run(sweep, results=tmp_path, executor=Made(), on_event=look)
        assert any(one is None for one in best[0]) == (points == 3), "the first event comes before any result"


def test_a_plan_counts_a_searchs_own_trials_and_not_those_of_the_sweep_before_it(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=Made())
    edited = write_tiny(tmp_path, ("seeds: 2", "seeds: 2\nsearch: {kind: random, points: 4}"))
    job = prepare(edited, results=tmp_path)
    assert (job.plan.num_done, job.plan.num_left) == (0, len(job.missing))
    run(edited, results=tmp_path, executor=Made())
    after = prepare(edited, results=tmp_path).plan
    assert (after.num_done, after.num_left) == (3 * 4 * 2, 0)


def test_a_search_reuses_what_it_comes_to_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    full = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made(fail=30 - 20)).folder
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, folder, metric: Rounds(expansion))
    executor = Made()
    results = run(write_tiny(tmp_path), results=tmp_path, reuse=[full], executor=executor)
    stored = Store.open(full, write=False).done_ids()
    assert {one.id for stack in executor.given for one in stack.trials}.isdisjoint(stored)
    assert len(results.trials) == 18
    assert trained(executor) == 18 - len(stored & set(results.trials["trial_id"]))


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
    append = Store.append

    def signaled(store: Store, pairs: Sequence[object]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        append(store, pairs)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "append", signaled)
    with pytest.raises(Interrupted) as error:
        run(sweep, results=tmp_path, executor=Made())
    assert error.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert prepare(sweep, results=tmp_path).plan.num_done == 5
    assert not (tmp_path / "tiny" / LEASE_FILE).exists()
