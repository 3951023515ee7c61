"""The driver trains what is missing, stores what comes, and survives what a user and a machine may do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny import write_tiny

import hpxfer
from hpxfer import driver, trial
from hpxfer.driver import longest_first, measured, prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Train
from hpxfer.result import TrialResult
from hpxfer.results import Results, load_results
from hpxfer.stack import Device, Measured, Stack
from hpxfer.store import Store, rows
from hpxfer.train.event import Event, Progress
from hpxfer.trial import TRAINER_VERSION

NUMBERS = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]


class InProcess:
    """An executor that trains in this process and remembers the stacks it was given."""

    def __init__(self) -> None:
        self.given: list[Stack] = []

    def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
        self.given += stacks
        for stack in stacks:
            for event in train(stack):
                on_event(event)


class Made(InProcess):
    """An executor that makes results up; `fail` trials fail."""

    def __init__(self, fail: int = 0, stop_after: int | None = None) -> None:
        super().__init__()
        self.fail, self.stop_after = fail, stop_after

    def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
        self.given += stacks
        for count, stack in enumerate(stacks):
            if count == self.stop_after:
                raise KeyboardInterrupt
            on_event(Progress(tokens=1))
            on_event(tuple(self._result(trial.id) for trial in stack.trials))

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
    assert more.rate_from == "measured: 2 of 2 shapes, from the store"
    longer = prepare(write_tiny(tmp_path, ("steps: 6", "steps: 600")), results=tmp_path).plan
    assert longer.rate_from.startswith("assumed")


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
        on_event=lambda _, tally: seen.append((tally.ended, tally.failed, tally.tokens)),
    )
    assert seen[-1][:2] == (30, 2)
    assert seen[-1][2] == len(seen) // 2


def test_an_executor_that_ends_early_is_said_so(tmp_path: Path) -> None:
    class Lazy(InProcess):
        def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
            """Report nothing."""

    with pytest.raises(HpxferError, match="ended with 0 of 30 trials; run again to go on"):
        run(write_tiny(tmp_path), results=tmp_path, executor=Lazy())


def test_the_costliest_stacks_go_first(tmp_path: Path) -> None:
    flops = [stack.flops for stack in longest_first(prepare(write_tiny(tmp_path), results=tmp_path))]
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
    assert plan.rate_from == "measured: 2 of 2 shapes, from the store"
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
    assert {len(stack.trials) for stack in longest_first(job)} <= {1, 2}


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
        for module in (trial, rows, driver):
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
