"""What a job is before it runs: its plan, the time that was measured, the order of its stacks, its cautions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from driver_cases import InProcess, Made, trained
from tiny import write_tiny

from hpxfer import trial
from hpxfer.driver import measured, prepare, run, stacks_in_order
from hpxfer.driver import prepared as driver_job
from hpxfer.plan.packing import Device, Measured
from hpxfer.results import Results, load_results
from hpxfer.store import Store, rows
from hpxfer.trial import TRAINER_VERSION
from hpxfer.trial.result import TrialResult


def test_time_is_measured_on_trials_of_the_same_length(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=InProcess())
    more = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path).plan
    assert more.rate_from.startswith("measured: 2 of 2 shapes, from the store")
    longer = prepare(write_tiny(tmp_path, ("steps: 6", "steps: 600")), results=tmp_path).plan
    assert not any(row.is_measured for row in longer.shapes)


def test_the_base_trains_first_then_the_shapes_beside_it_on_every_axis(tmp_path: Path) -> None:
    axes = "axes: {width: [8, 16, 32, 64], depth: [1, 4, 8]}"
    sweep = write_tiny(tmp_path, ("axes:\n  width: [16, 32]", axes), ("workers: 2", "workers: 1"))
    job = prepare(sweep, results=tmp_path)
    shapes = [stack.shape for stack in stacks_in_order(job.missing, job)]
    dims = list(dict.fromkeys((shape.width, shape.depth) for shape in shapes))
    assert dims[0] == (16, 1)
    assert set(dims[1:4]) == {(8, 1), (32, 1), (16, 4)}
    assert set(dims[4:]) == {(64, 1), (16, 8)}
    base = sum(shape == job.spec.base_shape for shape in shapes)
    assert all(shape == job.spec.base_shape for shape in shapes[:base])


def test_planning_writes_nothing(tmp_path: Path) -> None:
    prepare(write_tiny(tmp_path), results=tmp_path / "results")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.slow
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
    assert {row.shape for row in plan.shapes} == set(found)
    assert all(
        measured.trial_s and measured.trial_bytes is None and measured.most is None for measured in found.values()
    )
    assert measured(Store.open(results.folder, write=False), cuda=True) == {}


class Crowded(Made):
    """A GPU on which no stack of more than two trials fits."""

    def _result(self, trial_id: str) -> TrialResult:
        plain = super()._result(trial_id)
        return replace(plain, wall_s=3.0, peak_bytes=5000, stack_size=2, halvings=1, device="NVIDIA made up")


def test_a_halved_stack_is_packed_by_its_half_the_next_time(tmp_path: Path) -> None:
    folder = run(write_tiny(tmp_path), results=tmp_path, executor=Crowded()).folder
    found = measured(Store.open(folder, write=False), cuda=True)
    assert set(found.values()) == {Measured(trial_s=1.5, trial_bytes=2500.0, most=2, stack_size=2)}
    job = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path)
    job = replace(job, real=replace(job.real, device=Device(cuda=True)), measured=found)
    assert {len(stack.trials) for stack in stacks_in_order(job.missing, job)} <= {1, 2}


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
    assert caution.startswith(f"{tmp_path / 'tiny'}: its trials were trained by version 2 of the trainer")
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
        patch.setattr(trial.Expansion.__init__, "__defaults__", (version, None, None, None))
        return run(sweep, results=results, executor=Made())


def test_fast_on_a_cpu_is_said_to_be_strict(tmp_path: Path) -> None:
    fast = write_tiny(tmp_path, ("steps: 6", "steps: 6, determinism: fast"))
    (caution,) = prepare(fast, results=tmp_path).plan.cautions
    assert "fast runs the same code as strict" in caution
    results = run(fast, results=tmp_path, executor=InProcess())
    assert set(results.trials["determinism"]) == {"fast"}
    assert set(results.trials["backend"]) == {"torch"}
    assert results.trials["kernel_configs"].isna().all()
